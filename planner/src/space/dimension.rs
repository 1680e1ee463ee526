//! What a dimension of the space is, and the two forms that most of them have: numbers and names.

use crate::candidate::Candidate;
use crate::question::{Breadth, Question};

/// One choice that a plan makes.
pub(super) trait Dimension: Sync {
    /// Its name in pins.
    fn key(&self) -> &'static str;

    /// One line that says what it is.
    fn summary(&self) -> &'static str;

    /// What a pin of it can be.
    fn values(&self) -> Values;

    /// `draft` with each value worth trying, or with those that are pinned, if that is possible at all.
    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate>;

    /// Its value in a candidate, as pins write it.
    fn value(&self, candidate: &Candidate) -> String;
}

/// What the values of a dimension are.
pub(super) enum Values {
    /// Whole numbers from 1.
    Number,
    /// Some of these.
    Names(Vec<&'static str>),
}

/// What the options of a dimension follow from, the draft aside.
pub(super) struct Given<'a> {
    pub question: &'a Question,
    /// The only values that it may have; `None` if it is free.
    pub pinned: Option<Vec<String>>,
}

impl Given<'_> {
    /// Whether everything is tried.
    pub fn is_whole(&self) -> bool {
        self.question.pins.breadth == Breadth::Whole
    }

    /// Whether what suits the model is tried.
    pub fn is_auto(&self) -> bool {
        self.question.pins.breadth == Breadth::Auto
    }

    /// Whether no more than tensor, pipeline and data parallelism are tried.
    pub fn is_core(&self) -> bool {
        self.question.pins.breadth == Breadth::Core
    }

    /// Whether the pins allow a choice to have a value, and nothing narrower than they does.
    pub fn tries(&self, key: &str, value: &str) -> bool {
        self.question.pins.allows(key, value) && (self.is_whole() || self.question.pins.pinned(key).is_some())
    }

    /// The pinned numbers; `None` if the dimension is free.
    pub fn numbers(&self) -> Option<Vec<usize>> {
        self.pinned.as_ref().map(|pinned| pinned.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// Those of `known` that are pinned; if none is, those that `tried` takes.
    pub fn names(&self, known: &[&'static str], tried: impl Fn(&str) -> bool) -> Vec<&'static str> {
        let taken = |name: &&'static str| match &self.pinned {
            Some(pinned) => pinned.iter().any(|pin| pin == name),
            None => tried(name),
        };
        known.iter().copied().filter(taken).collect()
    }
}

/// A dimension whose values are numbers.
pub(super) struct Number {
    pub key: &'static str,
    pub summary: &'static str,
    /// The numbers that a draft can have, pinned or not, ascending.
    pub possible: fn(&Given, &Candidate) -> Vec<usize>,
    /// Whether one of them is worth trying if none is pinned.
    pub tried: fn(&Given, &Candidate, usize) -> bool,
    pub set: fn(&mut Candidate, usize),
    pub get: fn(&Candidate) -> usize,
}

impl Dimension for Number {
    fn key(&self) -> &'static str {
        self.key
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn values(&self) -> Values {
        Values::Number
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let pinned = given.numbers();
        let taken = |number: &usize| match &pinned {
            Some(pinned) => pinned.contains(number),
            None => (self.tried)(given, draft, *number),
        };
        let numbers = (self.possible)(given, draft).into_iter().filter(taken);
        numbers.map(|number| with(draft, |option| (self.set)(option, number))).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        (self.get)(candidate).to_string()
    }
}

/// A dimension whose values have names.
pub(super) struct Named {
    pub key: &'static str,
    pub summary: &'static str,
    /// All names, in the order in which they are tried.
    pub known: fn() -> Vec<&'static str>,
    /// Whether a draft can have one, pinned or not.
    pub possible: fn(&Given, &Candidate, &str) -> bool,
    /// Whether one is worth trying if none is pinned.
    pub tried: fn(&Given, &Candidate, &str) -> bool,
    pub set: fn(&Given, &mut Candidate, &'static str),
    pub get: fn(&Candidate) -> &'static str,
}

impl Dimension for Named {
    fn key(&self) -> &'static str {
        self.key
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn values(&self) -> Values {
        Values::Names((self.known)())
    }

    fn options(&self, given: &Given, draft: &Candidate) -> Vec<Candidate> {
        let names = given.names(&(self.known)(), |name| (self.tried)(given, draft, name));
        let possible = names.into_iter().filter(|name| (self.possible)(given, draft, name));
        possible.map(|name| with(draft, |option| (self.set)(given, option, name))).collect()
    }

    fn value(&self, candidate: &Candidate) -> String {
        (self.get)(candidate).into()
    }
}

/// A draft after one change.
pub(super) fn with(draft: &Candidate, change: impl FnOnce(&mut Candidate)) -> Candidate {
    let mut changed = *draft;
    change(&mut changed);
    changed
}

/// The divisors of a number, ascending.
pub(crate) fn divisors(number: usize) -> Vec<usize> {
    let small = (1..=number.isqrt()).filter(|divisor| number.is_multiple_of(*divisor));
    let mut divisors: Vec<usize> = small.flat_map(|divisor| [divisor, number / divisor]).collect();
    divisors.sort_unstable();
    divisors.dedup();
    divisors
}
