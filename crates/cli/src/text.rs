//! Bytes as printable text and back: `\t \n \r \\` and `\xNN` stand for what cannot be printed in a line.

use std::fmt::Write;

/// Printable form. Valid UTF-8 without control characters is left alone, apart from backslashes.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\\' => out.push_str("\\\\"),
                c if c.is_control() => {
                    let mut utf8 = [0; 4];
                    hex(&mut out, c.encode_utf8(&mut utf8).as_bytes());
                }
                c => out.push(c),
            }
        }
        hex(&mut out, chunk.invalid());
    }
    out
}

fn hex(out: &mut String, bytes: &[u8]) {
    for b in bytes {
        // Writing to a string cannot fail.
        let _ = write!(out, "\\x{b:02x}");
    }
}

/// The bytes that a printable form stands for; the error says what is wrong.
pub(crate) fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&b| b == b'\\') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let (byte, used) = match rest {
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', a, b, ..] => match (char::from(*a).to_digit(16), char::from(*b).to_digit(16)) {
                (Some(a), Some(b)) => ((a * 16 + b) as u8, 3),
                _ => return Err("\\x wants two hexadecimal digits".into()),
            },
            [b'x', ..] => return Err("\\x wants two hexadecimal digits".into()),
            [other, ..] => return Err(format!("unknown escape \\{}", char::from(*other))),
            [] => return Err("a backslash at the end".into()),
        };
        out.push(byte);
        rest = &rest[used..];
    }
    out.extend_from_slice(rest);
    Ok(out)
}

/// A key or value from the command line.
pub(crate) fn argument(text: &str, raw: bool) -> Result<Vec<u8>, String> {
    if raw { Ok(text.as_bytes().to_vec()) } else { unescape(text.as_bytes()) }
}

/// A number of bytes for people.
pub(crate) fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut v = n as f64;
    let mut u = 0;
    while v >= 1024.0 && u < units.len() - 1 {
        v /= 1024.0;
        u += 1;
    }
    if u == 0 { format!("{n} B") } else { format!("{v:.1} {}", units[u]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_string_survives_the_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"", b"a\\b\tc\nd", "gr\u{fc}n \u{85}".as_bytes(), b"\xff\xfe"] {
            let text = escape(bytes);
            assert!(!text.contains(['\n', '\t', '\r']));
            assert_eq!(unescape(text.as_bytes()).unwrap(), bytes);
        }
    }

    #[test]
    fn bad_escapes_are_named() {
        for bad in ["\\q", "\\x1", "\\xzz", "end\\"] {
            assert!(unescape(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
    }
}
