//! The arithmetic of shells, `$((GPUS * NODES / 2))`, as far as training scripts use it: `+ - * / %`, signs and brackets
//! over whole numbers and variables of the script.

use std::collections::BTreeMap;

/// How an expression begins.
const OPEN: &str = "$((";

/// Brackets in each other.
const DEEPEST: usize = 64;

/// A text without the blanks inside of its expressions, so that each stays one word.
pub fn without_blanks(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((start, end)) = expression(rest) {
        out += &rest[..start];
        out.extend(rest[start..end].chars().filter(|letter| !letter.is_whitespace()));
        rest = &rest[end..];
    }
    out + rest
}

/// A word with its expressions replaced by their values; those without one stay.
pub fn evaluated(word: &str, variables: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some((start, end)) = expression(rest) {
        out += &rest[..start];
        match value(&rest[start + OPEN.len()..end - 2], variables) {
            Ok(value) => out += &value.to_string(),
            Err(_) => out += &rest[start..end],
        }
        rest = &rest[end..];
    }
    out + rest
}

/// Why the first expression in a word has no value; `None` if there is none.
pub fn fault(word: &str, variables: &BTreeMap<String, String>) -> Option<String> {
    let (start, end) = expression(word)?;
    value(&word[start + OPEN.len()..end - 2], variables).err()
}

/// Where the first expression begins and ends; `$((a) | b)` is a command and none.
fn expression(text: &str) -> Option<(usize, usize)> {
    let mut from = 0;
    loop {
        let start = from + text[from..].find(OPEN)?;
        let end = start + closed(&text[start..])?;
        if text[..end].ends_with("))") {
            return Some((start, end));
        }
        from = end;
    }
}

/// Where the first bracket is closed.
fn closed(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (index, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' if depth == 1 => return Some(index + 1),
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

fn value(expression: &str, variables: &BTreeMap<String, String>) -> Result<i64, String> {
    let mut reader = Reader { rest: expression, variables, depth: 0 };
    let value = reader.sum()?;
    match reader.peek() {
        None => Ok(value),
        Some(letter) => Err(format!("`{letter}` is not understood in it: + - * / % and brackets are")),
    }
}

/// What is left of an expression.
struct Reader<'a> {
    rest: &'a str,
    variables: &'a BTreeMap<String, String>,
    depth: usize,
}

impl Reader<'_> {
    fn sum(&mut self) -> Result<i64, String> {
        let mut value = self.product()?;
        while let Some(sign) = self.take(&['+', '-']) {
            let next = self.product()?;
            let sum = if sign == '+' { value.checked_add(next) } else { value.checked_sub(next) };
            value = sum.ok_or_else(too_large)?;
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<i64, String> {
        let mut value = self.factor()?;
        while let Some(sign) = self.take(&['*', '/', '%']) {
            let next = self.factor()?;
            if sign != '*' && next == 0 {
                return Err("it divides by 0".into());
            }
            let product = match sign {
                '*' => value.checked_mul(next),
                '/' => value.checked_div(next),
                _ => value.checked_rem(next),
            };
            value = product.ok_or_else(too_large)?;
        }
        Ok(value)
    }

    fn factor(&mut self) -> Result<i64, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("it has more than {DEEPEST} brackets in each other"));
        }
        let value = match self.take(&['-', '+', '(']) {
            Some('-') => self.factor()?.checked_neg().ok_or_else(too_large)?,
            Some('+') => self.factor()?,
            Some(_) => {
                let value = self.sum()?;
                self.take(&[')']).ok_or("a bracket is not closed in it")?;
                value
            }
            None => self.operand()?,
        };
        self.depth -= 1;
        Ok(value)
    }

    /// A number, or a variable by its name or as `${NAME}`.
    fn operand(&mut self) -> Result<i64, String> {
        let text = self.rest.trim_start().trim_start_matches(['$', '{']);
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let end = text.find(|letter| !is_word(letter)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.rest = rest.trim_start_matches('}');
        match word.chars().next() {
            None => Err("a number or a variable is missing in it".into()),
            Some('0'..='9') => number(word).ok_or_else(|| format!("`{word}` is no decimal number")),
            Some(_) => {
                let value =
                    self.variables.get(word).ok_or_else(|| format!("{word} is not set in the file"))?;
                number(value.trim()).ok_or_else(|| format!("{word} is `{value}`, no decimal number"))
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.trim_start().chars().next()
    }

    /// The next letter if it is one of these.
    fn take(&mut self, letters: &[char]) -> Option<char> {
        let letter = self.peek().filter(|letter| letters.contains(letter))?;
        self.rest = &self.rest.trim_start()[1..];
        Some(letter)
    }
}

/// A decimal number; shells take one that begins with 0 as octal.
fn number(text: &str) -> Option<i64> {
    text.parse().ok().filter(|_| text == "0" || !text.trim_start_matches('-').starts_with('0'))
}

fn too_large() -> String {
    "its value has more than 64 bits".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_values() {
        let variables = BTreeMap::from([("GPUS".into(), "8".into()), ("BAD".into(), "many".into())]);
        let check = |word: &str, expected: &str| {
            assert_eq!(evaluated(&without_blanks(word), &variables), expected, "{word}");
        };
        check("$((GPUS * 16))", "128");
        check("$((GPUS*16))", "128");
        check("a$(( 2 + 3 * (GPUS - 1) ))b$((7 / 2))", "a23b3");
        check("$((-7 % 4 + +1))", "-2");
        check("$((${GPUS} * $GPUS))", "64");
        check("no $(command) and ${NAME} but $((1))", "no $(command) and ${NAME} but 1");
        check("$((a) | b) but $(( 1 + 1 ))", "$((a) | b) but 2");
        // Without a value they stay.
        for word in ["$((NODES*8))", "$((8/0))", "$((BAD+1))", "$((010))", "$((1<2))", "$(()", "$((2)"] {
            check(word, word);
        }
        check("$((9223372036854775807+1))", "$((9223372036854775807+1))");
        let deep = format!("$(({}1{}))", "(".repeat(99), ")".repeat(99));
        check(&deep, &deep);
    }

    #[test]
    fn faults_are_said() {
        let check = |word: &str, expected: Option<&str>| {
            assert_eq!(fault(word, &BTreeMap::new()).as_deref(), expected, "{word}");
        };
        check("$((NODES*8))", Some("NODES is not set in the file"));
        check("$((8%0))", Some("it divides by 0"));
        check("$((8*))", Some("a number or a variable is missing in it"));
        check("$((1<2))", Some("`<` is not understood in it: + - * / % and brackets are"));
        check("$((1+1))", None);
        check("16", None);
    }
}
