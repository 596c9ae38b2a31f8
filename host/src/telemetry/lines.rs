//! **A log that cannot be written stops nothing.** Its reader may be gone, or its disk full. Lines that are lost are counted,
//! and told as soon as one can be written again.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::config::LogFormat;

/// Takes whole lines, and never fails.
pub(super) struct Lines<W>(Arc<Mutex<Log<W>>>);

struct Log<W> {
    format: LogFormat,
    out: W,
    /// Lines that could not be written since the last one that was, and why the last of them was not.
    lost: Option<(u64, io::Error)>,
    /// The last line that was written ends in its middle.
    is_cut: bool,
}

impl<W: Write> Lines<W> {
    pub(super) fn new(format: LogFormat, out: W) -> Self {
        Self(Arc::new(Mutex::new(Log { format, out, lost: None, is_cut: false })))
    }
}

impl<W> Clone for Lines<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Write> MakeWriter<'_> for Lines<W> {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl<W: Write> Write for Lines<W> {
    /// One line, ended: the subscriber hands over each event as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write> Log<W> {
    fn add(&mut self, line: &[u8]) {
        if let Some((lines, error)) = &self.lost {
            let notice = notice(self.format, *lines, error);
            match self.put(notice.as_bytes()) {
                Ok(()) => self.lost = None,
                Err(error) => return self.lose(error),
            }
        }
        if let Err(error) = self.put(line) {
            self.lose(error);
        }
    }

    fn lose(&mut self, error: io::Error) {
        let lines = self.lost.as_ref().map_or(0, |(lines, _)| *lines);
        self.lost = Some((lines + 1, error));
    }

    /// On a disk that is nearly full a part of a line may be written: what follows begins on a line of its own.
    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_cut {
            put_whole(&mut self.out, b"\n", &mut self.is_cut)?;
        }
        put_whole(&mut self.out, line, &mut self.is_cut)
    }
}

/// Writes all of it. `is_cut`: only a part was written, here or before.
fn put_whole(out: &mut impl Write, mut bytes: &[u8], is_cut: &mut bool) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                *is_cut = !bytes.is_empty();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    out.flush()
}

/// A line of the log about those that are missing in it.
fn notice(format: LogFormat, lines: u64, error: &io::Error) -> String {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time)).expect("a text takes everything");
    let target = module_path!();
    let message = format!("lines of this log were lost before this one: {error}");
    match format {
        LogFormat::Text => format!("{time}  WARN {target}: {lines} {message}\n"),
        LogFormat::Json => {
            let line = serde_json::json!({
                "timestamp": time, "level": "WARN", "message": message, "lines": lines, "target": target,
            });
            format!("{line}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with room for so many more bytes.
    struct Disk {
        room: usize,
        text: Vec<u8>,
    }

    impl Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = bytes.len().min(self.room);
            if written == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= written;
            self.text.extend(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is in the log after these lines, each written where there was so much room, without times.
    fn logged(format: LogFormat, lines: &[(&str, usize)]) -> Vec<String> {
        let mut disk = Disk { room: 0, text: Vec::new() };
        let mut log = Log { format, out: &mut disk, lost: None, is_cut: false };
        for (line, room) in lines {
            log.out.room = *room;
            log.add(format!("{line}\n").as_bytes());
        }
        let text = String::from_utf8(disk.text).unwrap();
        text.lines().map(|line| line.split_once("Z  ").map_or(line, |(_, rest)| rest).to_owned()).collect()
    }

    const ROOM: usize = 10_000;

    #[test]
    fn lost_lines_are_counted_and_told_before_the_first_that_is_written_again() {
        let told = logged(LogFormat::Text, &[("a", ROOM), ("b", 0), ("c", 0), ("d", ROOM), ("e", ROOM)]);
        let notice =
            "WARN salvage::telemetry::lines: 2 lines of this log were lost before this one: no storage space";
        assert_eq!(told, ["a", notice, "d", "e"]);
        let told = logged(LogFormat::Json, &[("b", 0), ("d", ROOM)]);
        let notice: serde_json::Value = serde_json::from_str(&told[0]).unwrap();
        assert_eq!((notice["lines"].as_u64(), notice["level"].as_str()), (Some(1), Some("WARN")));
        assert_eq!(told[1], "d");
    }

    #[test]
    fn what_follows_a_cut_line_begins_on_a_line_of_its_own() {
        let told = logged(LogFormat::Text, &[("abc", 2), ("d", 0), ("e", ROOM)]);
        assert_eq!((told[0].as_str(), told[2].as_str()), ("ab", "e"));
        assert!(told[1].contains("2 lines of this log were lost"), "{told:?}");
    }
}
