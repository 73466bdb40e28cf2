//! A table, for a terminal and for a page.

use std::fmt::Write;

use super::format::escaped;

/// A column: its head, and whether it holds numbers.
#[derive(Clone, Debug)]
pub struct Column {
    head: String,
    number: bool,
}

/// Rows of cells under columns. A row may be the sum of those above it.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    cells: Vec<String>,
    sum: bool,
}

impl Table {
    /// Adds a column of words.
    pub fn words(mut self, head: &str) -> Self {
        self.columns.push(Column { head: head.to_owned(), number: false });
        self
    }

    /// Adds a column of numbers.
    pub fn numbers(mut self, head: &str) -> Self {
        self.columns.push(Column { head: head.to_owned(), number: true });
        self
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(Row { cells, sum: false });
    }

    /// Adds a row that sums up those above it.
    pub fn sum(&mut self, cells: Vec<String>) {
        self.rows.push(Row { cells, sum: true });
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Aligned with spaces, a line below the head and after each sum.
    pub fn text(&self) -> String {
        let widths: Vec<usize> = (self.columns.iter().enumerate())
            .map(|(index, column)| {
                let cells = self.rows.iter().filter_map(|row| row.cells.get(index)).map(|cell| cell.chars().count());
                cells.chain([column.head.chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for ((cell, column), width) in cells.zip(&self.columns).zip(&widths) {
                let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
                let (before, after) = if column.number { (gap.as_str(), "") } else { ("", gap.as_str()) };
                text += &format!("{before}{cell}{after}  ");
            }
            text.trim_end().to_owned() + "\n"
        };
        let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)) + "\n";
        let mut text = line(&mut self.columns.iter().map(|column| column.head.as_str()));
        text += &rule;
        for (index, row) in self.rows.iter().enumerate() {
            let cells = row.cells.iter().map(String::as_str).chain(std::iter::repeat(""));
            text += &line(&mut cells.take(self.columns.len()));
            if row.sum && index + 1 < self.rows.len() {
                text += &rule;
            }
        }
        text
    }

    /// As an HTML table.
    pub fn html(&self) -> String {
        let mut text = String::from("<div class=\"scroll\"><table><thead><tr>");
        for column in &self.columns {
            // Writing to a string cannot fail.
            let _ = write!(text, "<th{}>{}</th>", class(column.number), escaped(&column.head));
        }
        text += "</tr></thead><tbody>";
        for row in &self.rows {
            text += if row.sum { "<tr class=\"sum\">" } else { "<tr>" };
            let cells = row.cells.iter().map(String::as_str).chain(std::iter::repeat(""));
            for (cell, column) in cells.zip(&self.columns) {
                let _ = write!(text, "<td{}>{}</td>", class(column.number), escaped(cell));
            }
            text += "</tr>";
        }
        text + "</tbody></table></div>"
    }
}

fn class(number: bool) -> &'static str {
    if number { " class=\"number\"" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_aligned_and_sums_are_set_apart() {
        let mut table = Table::default().words("server").numbers("op/s");
        table.row(vec!["high-1".to_owned(), "21,467".to_owned()]);
        table.sum(vec!["all".to_owned(), "9".to_owned()]);
        table.row(vec!["µ".to_owned()]);
        let expected = "server    op/s\n--------------\nhigh-1  21,467\nall          9\n--------------\nµ\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn html_escapes_cells() {
        let mut table = Table::default().words("<a>");
        table.row(vec!["b & \"c\"".to_owned()]);
        let html = table.html();
        assert!(html.contains("<th>&lt;a&gt;</th>") && html.contains("<td>b &amp; &quot;c&quot;</td>"), "{html}");
    }
}
