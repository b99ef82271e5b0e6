//! Parts of results: a narrow row each, and their bodies apart. Written under the lock of the item.

use std::collections::HashMap;

use super::param::json;
use super::{Cells, Session, params};
use crate::{ItemId, Part, PartBody, Result};

/// A sequence as it is stored: a key column cannot be null.
fn stored(seq: Option<u32>) -> i64 {
    seq.map_or(-1, i64::from)
}

fn seq(stored: i64) -> Option<u32> {
    u32::try_from(stored).ok()
}

impl Session<'_> {
    /// The parts of an item by key and sequence, without their bodies.
    pub(crate) async fn parts(&mut self, item: ItemId) -> Result<Vec<Part>> {
        let rows = self.fetch(self.sql().parts, params![item]).await?;
        let read = |mut row: Cells| {
            Ok(Part {
                key: row.text()?,
                seq: seq(row.int()?),
                status: row.parse()?,
                checksum: row.text()?,
                bytes: row.number()?,
                errors: row.opt_json()?.unwrap_or_default(),
                agent: row.text()?,
                fence: row.number()?,
                submitted_at: row.time()?,
                body: None,
            })
        };
        rows.into_iter().map(read).collect()
    }

    /// Adds the bodies.
    pub(crate) async fn add_part_bodies(&mut self, item: ItemId, parts: &mut [Part]) -> Result<()> {
        let mut bodies = HashMap::new();
        for mut row in self.fetch(self.sql().part_bodies, params![item]).await? {
            let name = (row.text()?, seq(row.int()?));
            let (payload, evidence, notes) = (row.json()?, row.opt_json()?, row.opt_text()?);
            bodies.insert(name, PartBody { payload, evidence, notes });
        }
        for part in parts {
            part.body = bodies.remove(&(part.key.clone(), part.seq));
        }
        Ok(())
    }

    /// Writes a part with its body, in the place of the one before.
    pub(crate) async fn put_part(&mut self, item: ItemId, part: &Part, text: &str) -> Result<()> {
        let errors = (!part.errors.is_empty()).then(|| json(&part.errors)).transpose()?;
        let bytes = i64::try_from(part.bytes).unwrap_or(i64::MAX);
        let fence = i64::try_from(part.fence).unwrap_or(i64::MAX);
        let values = params![
            item,
            part.key.as_str(),
            stored(part.seq),
            part.status.as_str(),
            part.checksum.as_str(),
            bytes,
            errors,
            part.agent.as_str(),
            fence,
            part.submitted_at,
        ];
        self.execute(self.sql().put_part, values).await?;
        let body = part.body.as_ref();
        let evidence = body.and_then(|body| body.evidence.as_ref()).map(json).transpose()?;
        let notes = body.and_then(|body| body.notes.clone());
        let values = params![item, part.key.as_str(), stored(part.seq), text, evidence, notes];
        self.execute(self.sql().put_part_body, values).await?;
        Ok(())
    }
}
