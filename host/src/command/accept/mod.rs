//! `salvage accept`: what an operator vouches for, each kind apart. No word vouches for more than it says.
//!
//! | word | vouches that |
//! |---|---|
//! | `QUEUE`, `--all` | Redis lost nothing: what the queue holds now is the truth |
//! | `--new QUEUE` | a queue that was never seen is really the application's |
//! | `--foreign QUEUE NAME` | entries of that job name are somebody else's |
//! | `--declaration SOURCE` | rows of the source may be without an entry, whatever its control group says |
//! | `--entry QUEUE ID` | one entry that cannot be read or attributed is harmless |
//! | `--parked SOURCE [ID]` | what made PostgreSQL reject a change was mended |
//!
//! Each shows first what it is about to vouch for, and asks on a terminal.

mod declaration;
mod entry;
mod foreign;
mod list;
mod parked;
mod queues;

use std::io::{self, IsTerminal, Write};

pub use declaration::declaration;
pub use entry::entry;
pub use foreign::foreign;
pub use list::{list, revoke};
pub use parked::parked;
pub(in crate::command) use queues::similar;
pub use queues::{accept, accept_for_declarations, new_queue, queues};

use super::{CommandError, say};

/// Who says it, and whether he is asked once more.
#[derive(Debug, Clone, Copy)]
pub struct Operator<'a> {
    /// For the record.
    pub who: &'a str,
    /// He has said yes beforehand.
    pub is_sure: bool,
}

impl<'a> Operator<'a> {
    /// One who need not be asked.
    #[must_use]
    pub const fn sure(who: &'a str) -> Self {
        Self { who, is_sure: true }
    }

    /// Asks on a terminal; a script has said what it wants by calling.
    ///
    /// # Errors
    /// If the answer is not yes, or the terminal is gone.
    fn agrees(&self, question: &str) -> Result<(), CommandError> {
        if self.is_sure || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(());
        }
        write!(io::stdout().lock(), "{question} [y/N] ")?;
        io::stdout().flush()?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
        say("nothing was accepted")?;
        Err(CommandError::Unknown("not confirmed".to_owned()))
    }
}
