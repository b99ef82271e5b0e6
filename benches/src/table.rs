//! The table that a bench prints.
#![expect(clippy::print_stdout, reason = "the table is what a bench is for")]

use crate::Scale;

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// For orientation only.
    None,
    /// Not less than this.
    AtLeast(f64),
    /// Not less than the first, and better yet the second.
    Stretch(f64, f64),
    /// Not more than this.
    AtMost(f64),
}

impl Goal {
    fn wanted(self) -> String {
        match self {
            Goal::None => String::new(),
            Goal::AtLeast(least) => format!("≥ {least}"),
            Goal::Stretch(least, better) => format!("≥ {least}, better {better}"),
            Goal::AtMost(most) => format!("≤ {most}"),
        }
    }

    fn reached(self, figure: f64) -> &'static str {
        match self {
            Goal::None => "",
            Goal::Stretch(_, better) if figure >= better => "yes, and better",
            Goal::AtLeast(least) | Goal::Stretch(least, _) if figure >= least => "yes",
            Goal::AtMost(most) if figure <= most => "yes",
            _ => "no",
        }
    }
}

/// Rows of text, printed with columns that fit.
pub struct Table {
    title: &'static str,
    rows: Vec<[String; 5]>,
}

impl Table {
    /// An empty table.
    pub fn new(title: &'static str) -> Self {
        let head = ["what", "beside", "figure", "goal", "reached"];
        Table { title, rows: vec![head.map(str::to_owned)] }
    }

    /// Adds one figure; `shown` is how it is told.
    pub fn row(&mut self, what: &str, beside: &str, figure: f64, shown: String, goal: Goal) {
        let reached = goal.reached(figure).to_owned();
        self.rows.push([what.to_owned(), beside.to_owned(), shown, goal.wanted(), reached]);
    }

    /// Prints it as Markdown, so that it can be pasted as it is. A look has no figures worth
    /// reading, and neither has a part that was not wanted.
    pub fn print(&self, scale: Scale) {
        if !scale.is_whole() || self.rows.len() == 1 {
            return;
        }
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths: [usize; 5] = std::array::from_fn(width);
        println!("\n{}\n", self.title);
        for (number, row) in self.rows.iter().enumerate() {
            let cells: [String; 5] =
                std::array::from_fn(|column| format!("{:<1$}", row[column], widths[column]));
            println!("| {} |", cells.join(" | "));
            if number == 0 {
                println!("| {} |", widths.map(|width| "-".repeat(width)).join(" | "));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_knows_its_direction() {
        assert_eq!(Goal::AtLeast(1.7).reached(1.8), "yes");
        assert_eq!(Goal::AtLeast(1.7).reached(1.6), "no");
        assert_eq!(Goal::AtMost(1.2).reached(1.1), "yes");
        assert_eq!(Goal::AtMost(1.2).reached(1.3), "no");
        assert_eq!(Goal::Stretch(5.0, 8.0).reached(6.0), "yes");
        assert_eq!(Goal::Stretch(5.0, 8.0).reached(9.0), "yes, and better");
        assert_eq!(Goal::Stretch(5.0, 8.0).reached(f64::NAN), "no");
    }
}
