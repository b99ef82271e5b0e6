//! Reading server-sent events.

/// The largest message, in bytes: an event with its diff.
const MAX_MESSAGE: usize = 16 << 20;

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) id: Option<String>,
    pub(super) data: String,
}

/// Reads messages from chunks of bytes, however they are cut.
#[derive(Debug, Default)]
pub(super) struct Reader {
    line: Vec<u8>,
    message: Message,
    has_data: bool,
    /// A `\r` ended the line before, so a `\n` that follows belongs to it.
    after_cr: bool,
}

/// The message is larger than any event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

impl Reader {
    /// Reads on, and gives the messages that are complete.
    pub(super) fn read(&mut self, chunk: &[u8]) -> Result<Vec<Message>, TooLarge> {
        let mut complete = Vec::new();
        for &byte in chunk {
            match byte {
                b'\n' if self.after_cr => self.after_cr = false,
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    complete.extend(self.end_of_line(&String::from_utf8_lossy(&line)));
                }
                byte => {
                    self.after_cr = false;
                    if self.line.len() + self.message.data.len() >= MAX_MESSAGE {
                        return Err(TooLarge);
                    }
                    self.line.push(byte);
                }
            }
        }
        Ok(complete)
    }

    fn end_of_line(&mut self, line: &str) -> Option<Message> {
        if line.is_empty() {
            let message = std::mem::take(&mut self.message);
            return std::mem::take(&mut self.has_data).then_some(message);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
                self.has_data = true;
            }
            "id" => self.message.id = Some(value.to_owned()),
            _ => {} // a comment that keeps the connection, or the event's name, which the data has too
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &str) -> Vec<Message> {
        Reader::default().read(text.as_bytes()).expect("small")
    }

    #[test]
    fn messages_are_read_as_the_standard_says() {
        let message = |id: Option<&str>, data: &str| Message {
            id: id.map(str::to_owned),
            data: data.to_owned(),
        };
        assert_eq!(all("id: 7\nevent: x\ndata: {}\n\n"), [message(Some("7"), "{}")]);
        assert_eq!(all("data:a\r\ndata: b\r\n\r\n"), [message(None, "a\nb")]);
        assert_eq!(all(": a comment\n\n\n\nid: 1\n\n"), []);
        assert_eq!(all("data: not complete\n"), []);
        assert_eq!(all("data\n\ndata:\r\r"), [message(None, ""), message(None, "")]);
        let mut reader = Reader::default();
        assert_eq!(reader.read(&vec![b'x'; MAX_MESSAGE + 1]), Err(TooLarge));
    }

    proptest! {
        /// Whatever comes, and however it is cut, gives the same messages as in one piece.
        #[test]
        fn cuts_do_not_matter(
            lines in proptest::collection::vec("(id|data|event|:|[a-z]{0,3}):? ?[\\PC]{0,8}", 0..20),
            ends in proptest::collection::vec(prop_oneof!["\n", "\r\n", "\r"], 20),
            cuts in proptest::collection::vec(0_usize..40, 0..40),
        ) {
            let text: String = lines.iter().zip(&ends).map(|(line, end)| format!("{line}{end}{end}")).collect();
            let whole = all(&text);
            let (mut reader, mut cut, mut rest) = (Reader::default(), Vec::new(), text.as_bytes());
            for size in cuts {
                let (chunk, behind) = rest.split_at(size.min(rest.len()));
                cut.extend(reader.read(chunk).expect("small"));
                rest = behind;
            }
            cut.extend(reader.read(rest).expect("small"));
            prop_assert_eq!(cut, whole);
        }
    }
}
