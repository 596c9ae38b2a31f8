//! Just enough of Redis's protocol to ask a server how it is, without a driver.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for a connection or a reply.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Sends the commands on one connection and returns the last reply: scalars as text, arrays one element a line, nil as
/// an empty text.
///
/// Errors: no connection, no reply in 5 s, or an error reply to any of the commands (as its text).
pub(crate) fn ask(port: u16, commands: &[&[&str]]) -> Result<String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)
        .with_context(|| format!("connecting to Redis on port {port}"))?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).context("setting the time limit of a reply")?;
    let mut replies = BufReader::new(stream.try_clone().context("sharing the connection")?);
    let mut reply = String::new();
    for command in commands {
        (&stream).write_all(&encode(command)).with_context(|| format!("sending {}", command[0]))?;
        reply = read(&mut replies).with_context(|| format!("reading the reply to {}", command[0]))?;
    }
    Ok(reply)
}

fn encode(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

fn read(replies: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if replies.read_line(&mut line)? == 0 {
        bail!("the server closed the connection");
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).context("an empty reply")?;
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "-" => bail!("{rest}"),
        "$" => match usize::try_from(rest.parse::<i64>()?) {
            Err(_) => Ok(String::new()),
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                replies.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
        },
        "*" => {
            let elements = rest.parse::<i64>()?.max(0);
            Ok((0..elements).map(|_| read(replies)).collect::<Result<Vec<_>>>()?.join("\n"))
        }
        _ => bail!("a reply of an unknown kind: {line}"),
    }
}
