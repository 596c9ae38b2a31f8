//! A model of PostgreSQL: the job rows, the decks, row locks, and transactions that PostgreSQL ends when they idle.
//!
//! Readers see what is committed. A writer's row stays locked until its transaction ends; who meets the lock skips the row,
//! waits, or gives up, as its statement says.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use salvage_core::act::{Act, Change};
use salvage_core::candidate::{LiveRow, RowToken};
use salvage_core::lease::Fence;
use salvage_core::outcome::Outcome;

use super::domains::{PARENT_COLUMNS, SOURCES};
use super::records::Records;
use super::scheduler::Process;

/// PostgreSQL ends a transaction of the host that idles for longer (`idle_in_transaction_session_timeout`).
pub(super) const IDLE_MAX: Duration = Duration::from_secs(5);

/// The statuses of jobs and of decks.
const WORDS: [&str; 9] =
    ["QUEUED", "PROCESSING", "COMPLETED", "FAILED", "CANCELLED", "GENERATING", "EXPORTING", "READY", "NONE"];

/// A row as it is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) deck: usize,
    pub(super) job_type: &'static str,
    pub(super) status: &'static str,
    pub(super) progress: u32,
    pub(super) error: Option<String>,
    /// By the writer's clock.
    pub(super) updated: Timestamp,
    /// When `updated` was last written, in true time.
    pub(super) written: Duration,
    pub(super) xmin: u64,
}

impl Row {
    pub(super) fn is_live(&self) -> bool {
        matches!(self.status, "QUEUED" | "PROCESSING")
    }

    pub(super) fn updated_text(&self) -> String {
        self.updated.as_microsecond().to_string()
    }

    pub(super) fn has_token(&self, token: &RowToken) -> bool {
        self.status == token.status
            && self.xmin.to_string() == token.xmin
            && self.updated_text() == token.updated_at
    }

    pub(super) fn token(&self, id: &str) -> RowToken {
        RowToken {
            id: id.to_owned(),
            status: self.status.to_owned(),
            updated_at: self.updated_text(),
            xmin: self.xmin.to_string(),
        }
    }

    pub(super) fn listed(&self, id: &str) -> LiveRow {
        LiveRow {
            id: id.to_owned(),
            status: self.status.to_owned(),
            job_type: Some(self.job_type.to_owned()),
            updated_at: Some(self.updated_text()),
            updated: Some(self.updated),
            xmin: self.xmin.to_string(),
        }
    }
}

/// A parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deck {
    /// Its status and its export status: what each source's jobs map to.
    pub(super) status: [&'static str; SOURCES],
    /// Part of every payload, so of every digest.
    pub(super) title: u32,
}

/// What can be locked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Job(usize, String),
    Deck(usize),
}

/// Who holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Host(u64),
    /// A transaction of the application, until then.
    Application(Duration),
}

/// A transaction of a host that changed a job's row and is still open.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) process: Process,
    pub(super) fence: Fence,
    pub(super) act: Act,
    pub(super) source: usize,
    /// What the row was when it was locked.
    pub(super) before: Option<Row>,
    /// What COMMIT makes true.
    pub(super) after: Option<Row>,
    /// Deck, its column, its new status.
    pub(super) parent: Option<(usize, usize, &'static str)>,
    /// The queue's part was done in it.
    pub(super) is_cleared: bool,
    /// Its last statement.
    pub(super) active_at: Duration,
    pub(super) began: Duration,
}

/// The whole database.
#[derive(Debug)]
pub(super) struct SimPostgres {
    pub(super) tables: [BTreeMap<String, Row>; SOURCES],
    /// One per deck; `None` if it was deleted.
    pub(super) decks: Vec<Option<Deck>>,
    pub(super) locks: BTreeMap<Target, Holder>,
    pub(super) transactions: BTreeMap<u64, Transaction>,
    pub(super) records: Records,
    next_xid: u64,
}

impl SimPostgres {
    pub(super) fn new(decks: usize) -> Self {
        let deck = Deck { status: ["READY", "NONE"], title: 0 };
        Self {
            tables: Default::default(),
            decks: vec![Some(deck); decks],
            locks: BTreeMap::new(),
            transactions: BTreeMap::new(),
            records: Records::default(),
            next_xid: 100,
        }
    }

    pub(super) const fn xid(&mut self) -> u64 {
        self.next_xid += 1;
        self.next_xid
    }

    pub(super) fn row(&self, source: usize, id: &str) -> Option<&Row> {
        self.tables[source].get(id)
    }

    pub(super) fn is_locked(&self, target: &Target) -> bool {
        self.locks.contains_key(target)
    }

    /// Ends what has been idle for too long, and the application's own transactions whose time is up.
    pub(super) fn expire(&mut self, now: Duration) {
        let idle = |transaction: &Transaction| now > transaction.active_at + IDLE_MAX;
        while let Some(xid) =
            self.transactions.iter().find(|(_, transaction)| idle(transaction)).map(|(xid, _)| *xid)
        {
            self.end(xid);
        }
        if !self.locks.is_empty() {
            self.locks.retain(|_, holder| !matches!(holder, Holder::Application(until) if now >= *until));
        }
    }

    /// Ends a transaction without writing anything.
    pub(super) fn end(&mut self, xid: u64) -> Option<Transaction> {
        self.locks.retain(|_, holder| *holder != Holder::Host(xid));
        self.transactions.remove(&xid)
    }

    /// Opens a transaction of a host and checks its fence, whose row it keeps share-locked.
    ///
    /// # Errors
    /// If the fence was raised.
    pub(super) fn begin(
        &mut self,
        process: Process,
        fence: &Fence,
        (source, act): (usize, &Act),
        now: Duration,
        is_fenced: bool,
    ) -> Result<u64, ()> {
        if is_fenced && !self.records.is_newest(fence) {
            return Err(());
        }
        let xid = self.xid();
        let transaction = Transaction {
            process,
            fence: fence.clone(),
            act: act.clone(),
            source,
            before: None,
            after: None,
            parent: None,
            is_cleared: false,
            active_at: now,
            began: now,
        };
        self.transactions.insert(xid, transaction);
        Ok(xid)
    }

    /// Takes the job's row by its whole token, or says why it is not ours. `guard` is what must be repeated of the token.
    ///
    /// # Errors
    /// What the row turned out to be.
    pub(super) fn lock_job(&mut self, xid: u64, guard: Guard) -> Result<(), Outcome> {
        let Some(transaction) = self.transactions.get_mut(&xid) else { return Err(ended()) };
        let token = &transaction.act.candidate.token;
        let target = Target::Job(transaction.source, token.id.clone());
        let Some(row) = self.tables[transaction.source].get(&token.id) else { return Err(Outcome::Gone) };
        if guard == Guard::WholeToken && !row.has_token(token) {
            return Err(Outcome::Superseded("the row moved on".to_owned()));
        }
        if self.locks.contains_key(&target) {
            return Err(Outcome::Superseded("locked: another transaction holds the row".to_owned()));
        }
        transaction.before = Some(row.clone());
        self.locks.insert(target, Holder::Host(xid));
        Ok(())
    }

    /// Takes the parent's row; `None` while another holds it, `Some(false)` if there is none to change.
    pub(super) fn lock_parent(&mut self, xid: u64, now: Duration) -> Option<bool> {
        let transaction = self.transactions.get_mut(&xid)?;
        transaction.active_at = now;
        let (Some(_), Some(row)) = (&transaction.act.parent, &transaction.before) else { return Some(false) };
        let deck = row.deck;
        if self.decks[deck].is_none() {
            return Some(false);
        }
        match self.locks.get(&Target::Deck(deck)) {
            Some(Holder::Host(holder)) if *holder == xid => Some(true),
            Some(_) => None,
            None => {
                self.locks.insert(Target::Deck(deck), Holder::Host(xid));
                Some(true)
            }
        }
    }

    /// Decides what COMMIT will write, once all locks are taken.
    pub(super) fn stage(&mut self, xid: u64, now: Timestamp, at: Duration) {
        let parent = self.parent_change(xid);
        let new_xid = xid;
        let Some(transaction) = self.transactions.get_mut(&xid) else { return };
        let Some(before) = &transaction.before else { return };
        let (status, progress, error) = match &transaction.act.change {
            Change::Requeue { .. } => ("QUEUED", 0, None),
            Change::Fail { reason } => ("FAILED", before.progress, Some(reason.clone())),
        };
        let later = before.updated.checked_add(Duration::from_micros(1)).unwrap_or(now);
        let after = Row {
            status,
            progress,
            error,
            updated: now.max(later),
            written: at,
            xmin: new_xid,
            ..before.clone()
        };
        transaction.after = Some(after);
        transaction.parent = parent;
        transaction.active_at = at;
    }

    /// The parent's change, if its status is one to change from and no other live row maps to it.
    fn parent_change(&self, xid: u64) -> Option<(usize, usize, &'static str)> {
        let transaction = self.transactions.get(&xid)?;
        let parent = transaction.act.parent.as_ref()?;
        let deck = transaction.before.as_ref()?.deck;
        let column = PARENT_COLUMNS.iter().position(|column| *column == parent.change.status_column)?;
        let status = self.decks[deck].as_ref()?.status[column];
        let own = (transaction.source, transaction.act.candidate.token.id.as_str());
        let is_sibling = |table: &str| parent.siblings.iter().any(|sibling| sibling.table == table);
        let tables = ["SlideJob", "SlideExportJob"];
        let has_live_sibling = (0..SOURCES).filter(|source| is_sibling(tables[*source])).any(|source| {
            self.tables[source]
                .iter()
                .any(|(id, row)| row.deck == deck && row.is_live() && (source, id.as_str()) != own)
        });
        let may = parent.change.from.iter().any(|from| from == status) && !has_live_sibling;
        let to = WORDS.into_iter().find(|word| *word == parent.change.to)?;
        may.then_some((deck, column, to))
    }
}

/// How much of the row token a write repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    WholeToken,
    /// Only a negative twin does this.
    IdAlone,
}

fn ended() -> Outcome {
    Outcome::Superseded("PostgreSQL had ended the transaction".to_owned())
}
