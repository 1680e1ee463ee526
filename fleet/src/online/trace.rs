//! A trace of arrivals: `job,arrival_s,profile,gpus,steps` and, where they differ from the usual, `min_gpus`, `max_gpus`,
//! `weight`, `restart_s`, `user`.

use serde::Deserialize;
use trainwright_spec::units::Seconds;

/// The most jobs of a trace.
pub const MOST_JOBS: usize = 20_000;
/// The most GPUs that a job may ask for.
pub const MOST_GPUS: usize = 100_000;
/// The latest arrival and the longest restart, in seconds: a hundred years, a day.
const MOST_SECONDS: (f64, f64) = (3.2e9, 86_400.0);

/// A job and when it arrives.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// Its name.
    pub name: String,
    /// When it arrives.
    pub arrival: Seconds,
    /// What it runs, by the name that it has in the table of speeds.
    pub profile: String,
    /// The GPUs that it asks for: policies for jobs of fixed size give it these or none.
    pub gpus: usize,
    /// The fewest and the most GPUs that an elastic policy may give it.
    pub range: (usize, usize),
    /// Steps of work.
    pub steps: f64,
    /// Its priority: jobs of a larger weight go first where a policy has an order, and count more where it has a sum.
    pub weight: f64,
    /// How long it holds GPUs without a step after each change of them; `None`: as the question says.
    pub restart: Option<Seconds>,
    /// Whose it is; of no quota if it is nobody's.
    pub user: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    job: String,
    arrival_s: f64,
    profile: String,
    gpus: usize,
    steps: f64,
    #[serde(default)]
    min_gpus: Option<usize>,
    #[serde(default)]
    max_gpus: Option<usize>,
    #[serde(default)]
    weight: Option<f64>,
    #[serde(default)]
    restart_s: Option<f64>,
    #[serde(default)]
    user: Option<String>,
}

/// The jobs of a trace, by arrival; jobs that arrive together keep their order.
///
/// # Errors
/// The first line that makes no sense, with line, key, value and what is allowed.
pub fn read(text: &str) -> Result<Vec<Arrival>, String> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let mut jobs = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for (index, row) in reader.deserialize::<Row>().enumerate() {
        let line = index + 2;
        let row = row.map_err(|error| format!("line {line}: {}", error.to_string().replace('\n', " ")))?;
        let bad = |key: &str, value: String, allowed: &str| {
            Err(format!("line {line}: `{key}` is {value}; it should be {allowed}"))
        };
        if row.job.is_empty() || row.job.contains(char::is_control) || !names.insert(row.job.clone()) {
            return bad("job", format!("{:?}", row.job), "a word that no other job has");
        }
        if !(0.0..=MOST_SECONDS.0).contains(&row.arrival_s) {
            return bad("arrival_s", row.arrival_s.to_string(), "seconds from 0 to 3.2e9");
        }
        if !(1..=MOST_GPUS).contains(&row.gpus) {
            return bad("gpus", row.gpus.to_string(), "from 1 to 100000");
        }
        if !(1.0..=1e18).contains(&row.steps) {
            return bad("steps", row.steps.to_string(), "from 1 to 1e18");
        }
        let range = (row.min_gpus.unwrap_or(row.gpus), row.max_gpus.unwrap_or(row.gpus));
        if !(1..=row.gpus).contains(&range.0) {
            return bad("min_gpus", range.0.to_string(), "from 1 to gpus");
        }
        if !(row.gpus..=MOST_GPUS).contains(&range.1) {
            return bad("max_gpus", range.1.to_string(), "from gpus to 100000");
        }
        let weight = row.weight.unwrap_or(1.0);
        if !(1e-6..=1e6).contains(&weight) {
            return bad("weight", weight.to_string(), "from 1e-6 to 1e6");
        }
        if row.restart_s.is_some_and(|restart| !(0.0..=MOST_SECONDS.1).contains(&restart)) {
            let value = row.restart_s.map_or(String::new(), |value| value.to_string());
            return bad("restart_s", value, "seconds from 0 to 86400");
        }
        if jobs.len() == MOST_JOBS {
            return Err(format!("line {line}: there are more than {MOST_JOBS} jobs"));
        }
        jobs.push(Arrival {
            name: row.job,
            arrival: Seconds::new(row.arrival_s),
            profile: row.profile,
            gpus: row.gpus,
            range,
            steps: row.steps,
            weight,
            restart: row.restart_s.map(Seconds::new),
            user: row.user.filter(|name| !name.is_empty()),
        });
    }
    if jobs.is_empty() {
        return Err("there is no row".into());
    }
    jobs.sort_by(|one: &Arrival, other| one.arrival.get().total_cmp(&other.arrival.get()));
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::read;

    fn check(row: &str, expected: &str) {
        let text = format!("job,arrival_s,profile,gpus,steps,min_gpus,max_gpus,weight,restart_s\n{row}\n");
        let found = read(&text).map_or_else(|reason| reason, |jobs| jobs.len().to_string());
        assert_eq!(found, expected, "{row}");
    }

    #[test]
    fn rows() {
        check("a,0,p,2,10,,,,", "1");
        check("a,0,p,2,10,1,4,2,15", "1");
        check(
            "a,0,p,2,10,,,,\na,1,p,2,10,,,,",
            "line 3: `job` is \"a\"; it should be a word that no other job has",
        );
        check("a,-1,p,2,10,,,,", "line 2: `arrival_s` is -1; it should be seconds from 0 to 3.2e9");
        check("a,nan,p,2,10,,,,", "line 2: `arrival_s` is NaN; it should be seconds from 0 to 3.2e9");
        check("a,0,p,0,10,,,,", "line 2: `gpus` is 0; it should be from 1 to 100000");
        check("a,0,p,2,0,,,,", "line 2: `steps` is 0; it should be from 1 to 1e18");
        check("a,0,p,2,10,3,,,", "line 2: `min_gpus` is 3; it should be from 1 to gpus");
        check("a,0,p,2,10,,1,,", "line 2: `max_gpus` is 1; it should be from gpus to 100000");
        check("a,0,p,2,10,,,0,", "line 2: `weight` is 0; it should be from 1e-6 to 1e6");
        check("a,0,p,2,10,,,,1e9", "line 2: `restart_s` is 1000000000; it should be seconds from 0 to 86400");
        check("", "there is no row");
    }

    #[test]
    fn arrivals_are_sorted_and_ties_keep_their_order() {
        let jobs = read("job,arrival_s,profile,gpus,steps\nb,5,p,1,1\na,0,p,1,1\nc,0,p,1,1\n").unwrap();
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "b"]);
    }
}
