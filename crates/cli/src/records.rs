//! Records out of text: one at a time, in bounded memory, with their line numbers.

use std::io::BufRead;

use serde::Deserialize;

use crate::args::Format;
use crate::text::unescape;

/// Longest line or stanza accepted, in bytes: a value's limit with its escapes.
const LONGEST: usize = 1 << 30;

/// A record, or what is wrong with it.
#[derive(Debug, PartialEq)]
pub(crate) struct Item {
    /// Number of its first line, from 1.
    pub(crate) line: u64,
    pub(crate) parsed: Result<(Vec<u8>, Vec<u8>), String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRecord {
    key: String,
    value: String,
}

/// Reads records.
#[derive(Debug)]
pub(crate) struct Records<R> {
    input: R,
    format: Format,
    raw: bool,
    key_field: Vec<u8>,
    /// Lines read so far.
    pub(crate) lines: u64,
    /// Bytes read so far.
    pub(crate) bytes: u64,
    /// CRC-32 (IEEE) of everything read so far: a resumed load checks that it reads the same input.
    pub(crate) crc: u32,
    buffer: Vec<u8>,
}

impl<R: BufRead> Records<R> {
    pub(crate) fn new(input: R, format: Format, raw: bool, key_field: &str) -> Self {
        Records {
            input,
            format,
            raw,
            key_field: key_field.as_bytes().to_vec(),
            lines: 0,
            bytes: 0,
            crc: 0,
            buffer: Vec::new(),
        }
    }

    /// Reads one line into the buffer (behind what is there), with its line feed; 0 at the end.
    fn line(&mut self) -> std::io::Result<usize> {
        let before = self.buffer.len();
        loop {
            let chunk = self.input.fill_buf()?;
            if chunk.is_empty() {
                break;
            }
            let (take, done) = match chunk.iter().position(|&b| b == b'\n') {
                Some(at) => (at + 1, true),
                None => (chunk.len(), false),
            };
            if self.buffer.len() + take > LONGEST {
                return Err(std::io::Error::new(
                    std::io::ErrorKind::InvalidData,
                    format!("the record at line {} is longer than {LONGEST} bytes", self.lines + 1),
                ));
            }
            self.buffer.extend_from_slice(&chunk[..take]);
            self.input.consume(take);
            if done {
                break;
            }
        }
        let n = self.buffer.len() - before;
        if n > 0 {
            self.crc = crc32(self.crc, &self.buffer[before..]);
            self.bytes += n as u64;
            self.lines += 1;
        }
        Ok(n)
    }

    /// The next record; `None` at the end. Empty lines between records are passed over.
    pub(crate) fn next(&mut self) -> std::io::Result<Option<Item>> {
        match self.format {
            Format::Stanza => self.next_stanza(),
            _ => self.next_line(),
        }
    }

    fn next_line(&mut self) -> std::io::Result<Option<Item>> {
        loop {
            self.buffer.clear();
            if self.line()? == 0 {
                return Ok(None);
            }
            let text = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
            if text.is_empty() {
                continue;
            }
            let parsed = if self.format == Format::Tsv { tsv(text, self.raw) } else { jsonl(text) };
            return Ok(Some(Item { line: self.lines, parsed }));
        }
    }

    fn next_stanza(&mut self) -> std::io::Result<Option<Item>> {
        self.buffer.clear();
        let mut first = 0;
        loop {
            let before = self.buffer.len();
            let n = self.line()?;
            let blank = n > 0 && self.buffer[before..].iter().all(u8::is_ascii_whitespace);
            if blank {
                self.buffer.truncate(before);
            }
            if n == 0 || blank {
                if !self.buffer.is_empty() {
                    break;
                }
                if n == 0 {
                    return Ok(None);
                }
                continue;
            }
            if before == 0 {
                first = self.lines;
            }
        }
        let text = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let key = text.split(|&b| b == b'\n').find_map(|line| {
            let rest = line.strip_prefix(&self.key_field[..])?.strip_prefix(b":")?;
            Some(rest.trim_ascii().to_vec())
        });
        let parsed = match key {
            Some(key) => Ok((key, text.to_vec())),
            None => Err(format!("no field {:?}", String::from_utf8_lossy(&self.key_field))),
        };
        Ok(Some(Item { line: first, parsed }))
    }
}

fn tsv(text: &[u8], raw: bool) -> Result<(Vec<u8>, Vec<u8>), String> {
    let Some(tab) = text.iter().position(|&b| b == b'\t') else {
        return Err("no tab between key and value".into());
    };
    let (key, value) = (&text[..tab], &text[tab + 1..]);
    if raw {
        return Ok((key.to_vec(), value.to_vec()));
    }
    Ok((unescape(key)?, unescape(value)?))
}

fn jsonl(text: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let r: JsonRecord = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    Ok((unescape(r.key.as_bytes())?, unescape(r.value.as_bytes())?))
}

/// CRC-32 (IEEE), continued.
pub(crate) fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    let mut h = crc32fast::Hasher::new_with_initial(crc);
    h.update(bytes);
    h.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(format: Format, text: &str) -> Vec<Item> {
        let mut r = Records::new(text.as_bytes(), format, false, "Package");
        std::iter::from_fn(|| r.next().unwrap()).collect()
    }

    #[test]
    fn tsv_lines_with_escapes_and_bad_lines_by_number() {
        let items = all(Format::Tsv, "a\t1\n\nno tab\nk\\t\tv\\n\tx");
        assert_eq!(items.len(), 3);
        assert_eq!(items[0].parsed, Ok((b"a".to_vec(), b"1".to_vec())));
        assert_eq!(items[1].line, 3);
        assert!(items[1].parsed.is_err());
        assert_eq!(items[2].parsed, Ok((b"k\t".to_vec(), b"v\n\tx".to_vec())));
    }

    #[test]
    fn json_lines() {
        let items = all(Format::Jsonl, "{\"key\":\"a\",\"value\":\"b\\nc\"}\n{\"key\":1}\n");
        assert_eq!(items[0].parsed, Ok((b"a".to_vec(), b"b\nc".to_vec())));
        assert!(items[1].parsed.is_err());
    }

    #[test]
    fn stanzas_keep_their_bytes() {
        let items = all(Format::Stanza, "\nPackage: a\nX: 1\n two\n\n\nY: 2\n\nPackage:b\n");
        assert_eq!(items[0].parsed, Ok((b"a".to_vec(), b"Package: a\nX: 1\n two".to_vec())));
        assert_eq!((items[0].line, items[1].line), (2, 7));
        assert!(items[1].parsed.is_err());
        assert_eq!(items[2].parsed, Ok((b"b".to_vec(), b"Package:b".to_vec())));
    }

    #[test]
    fn the_running_checksum_is_that_of_the_whole_input() {
        let text = "a\t1\nb\t2\n";
        let mut r = Records::new(text.as_bytes(), Format::Tsv, false, "");
        while r.next().unwrap().is_some() {}
        assert_eq!((r.crc, r.bytes, r.lines), (crc32(0, text.as_bytes()), 8, 2));
    }
}
