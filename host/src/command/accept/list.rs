//! What was accepted and is in force, and its end.

use serde_json::json;

use super::Operator;
use crate::cli::Exit;
use crate::command::text::{drawn, table};
use crate::command::{CommandError, Done, say, say_json};
use crate::ports::{Acceptance, Ledger, Outside, Word};

/// Lists everything that operators vouched for and that is in force.
///
/// # Errors
/// If PostgreSQL did not answer.
pub async fn list<O: Outside>(outside: &O, json: bool) -> Done {
    outside.ledger().check_schema().await?;
    let acceptances = outside.ledger().acceptances().await?;
    if json {
        say_json(&acceptances.iter().map(as_json).collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    if acceptances.is_empty() {
        say("nothing is accepted")?;
        return Ok(Exit::Done);
    }
    let mut lines = table(["WHEN", "WHO", "WHAT"], 0..0);
    for Acceptance { word, who, at } in &acceptances {
        lines.add_row([format!("{at:.0}"), who.clone(), described(word)]);
    }
    say(drawn(&lines))?;
    Ok(Exit::Done)
}

/// Ends what an operator said.
///
/// # Errors
/// If it is not in force, or PostgreSQL did not answer.
pub async fn revoke<O: Outside>(outside: &O, words: &[Word], operator: Operator<'_>) -> Done {
    outside.ledger().check_schema().await?;
    for word in words {
        let what = described(word);
        if !outside.ledger().revoke(word).await? {
            let why = format!("{what}: that is not accepted; `salvage accept --list` shows what is");
            return Err(CommandError::Unknown(why));
        }
        tracing::warn!(who = operator.who, "acceptance revoked: {what}");
        say(format_args!("revoked: {what}"))?;
    }
    Ok(Exit::Done)
}

fn described(word: &Word) -> String {
    match word {
        Word::Queue { queue } => format!("queue {queue:?} as it is"),
        Word::Entry { queue, entry_id } => format!("entry {entry_id:?} of queue {queue:?} as nobody's job"),
        Word::Foreign { queue, name } => format!("jobs named {name:?} of queue {queue:?} as somebody else's"),
        Word::Declaration { source, .. } => format!("declaration of {source}, against its control group"),
    }
}

fn as_json(Acceptance { word, who, at }: &Acceptance) -> serde_json::Value {
    let mut line = match word {
        Word::Queue { queue } => json!({ "kind": "queue", "queue": queue }),
        Word::Entry { queue, entry_id } => json!({ "kind": "entry", "queue": queue, "entry": entry_id }),
        Word::Foreign { queue, name } => json!({ "kind": "foreign", "queue": queue, "name": name }),
        Word::Declaration { source, digest } => {
            json!({ "kind": "declaration", "source": source, "digest": digest })
        }
    };
    line["who"] = json!(who);
    line["at"] = json!(at);
    line
}
