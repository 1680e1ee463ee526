//! A launcher's environment variables: the number of this process, and the address of the others.

use crate::arguments::TransportChoice;
use crate::error::CliError;
use crate::output;
use std::env;
use std::net::Ipv6Addr;
use std::num::NonZeroUsize;
use std::time::Duration;
use trainwright_executor::{Remark, Rendezvous, RendezvousVia, Token};

/// How long processes wait for each other at the start.
const PATIENCE: Duration = Duration::from_secs(120);

/// The variable of the secret that all processes of a run share.
pub const TOKEN: &str = "TRAINWRIGHT_TOKEN";

/// torchrun's default port.
const PORT: &str = "29500";

/// A program that starts processes, and its variables for a process's rank, their number, and on its host which one
/// it is of how many.
struct Launcher {
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
    local: Local,
    /// Whether a process that finds these was surely started together with others: a shell inside of an allocation of
    /// Slurm finds them too, and torchrun's are set by hand.
    starts_together: bool,
}

/// How a launcher gives the number of processes on a host.
enum Local {
    /// As a number.
    Count(&'static str),
    /// For each host of the step, as `4(x2),3`, and the number of this one.
    ByNode { counts: &'static str, node: &'static str },
}

impl Launcher {
    /// Whether this process was surely started together with others.
    fn has_started_many(&self, known: Known) -> bool {
        let world = known(self.world).and_then(|text| text.parse::<usize>().ok());
        self.starts_together && known(self.rank).is_some() && world > Some(1)
    }
}

/// The first one that set a rank counts: torchrun or people, Open MPI, MPICH and those made from it, Slurm.
const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        rank: "RANK",
        world: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local: Local::Count("LOCAL_WORLD_SIZE"),
        starts_together: false,
    },
    Launcher {
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local: Local::Count("OMPI_COMM_WORLD_LOCAL_SIZE"),
        starts_together: true,
    },
    Launcher {
        rank: "PMI_RANK",
        world: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local: Local::Count("MPI_LOCALNRANKS"),
        starts_together: true,
    },
    Launcher {
        rank: "SLURM_PROCID",
        world: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local: Local::ByNode { counts: "SLURM_STEP_TASKS_PER_NODE", node: "SLURM_NODEID" },
        starts_together: false,
    },
];

/// Variables by their names.
type Known<'a> = &'a dyn Fn(&str) -> Option<String>;

fn environment(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// How ranks reach each other by default: processes that an MPI launcher has started are ranks.
pub fn transport(choice: Option<TransportChoice>) -> TransportChoice {
    choice.unwrap_or_else(|| usual(&environment))
}

fn usual(known: Known) -> TransportChoice {
    match LAUNCHERS.iter().any(|launcher| launcher.has_started_many(known)) {
        true if cfg!(feature = "mpi") => TransportChoice::Mpi,
        true => TransportChoice::Tcp,
        false => TransportChoice::Threads,
    }
}

/// This process's place among the launched ones; `None` if ranks are threads.
///
/// # Errors
/// `Argument` if the environment does not have it.
pub fn place(transport: TransportChoice) -> Result<Option<Rendezvous>, CliError> {
    if transport == TransportChoice::Threads {
        return Ok(None);
    }
    let (rank, world) = rank_and_world(&environment)?;
    let variable = |name: &str, otherwise: &str| env::var(name).unwrap_or_else(|_| otherwise.into());
    let via = match transport {
        TransportChoice::Mpi => RendezvousVia::Mpi,
        _ => {
            RendezvousVia::Tcp(master(&variable("MASTER_ADDR", "127.0.0.1"), &variable("MASTER_PORT", PORT)))
        }
    };
    let local_rank = local_rank(&environment)?;
    let (local_world, token) = (local(&environment)?, token(&environment)?);
    let remark = Remark(output::remark);
    Ok(Some(Rendezvous { rank, world, local_rank, local_world, via, patience: PATIENCE, token, remark }))
}

/// Where rank 0 listens, as `host:port`.
fn master(host: &str, port: &str) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{host}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// The secret of a run's processes; none if the variable is not set.
fn token(known: Known) -> Result<Token, CliError> {
    match known(TOKEN) {
        None => Ok(Token::default()),
        Some(secret) if secret.trim().is_empty() => {
            Err(refuse("empty", format!("{TOKEN} is a secret of all processes of a run: set it or unset it")))
        }
        Some(secret) => Ok(Token::new(secret)),
    }
}

/// The variable by which this process is a rank already. A shell or a batch script inside of an allocation of Slurm is none.
pub fn rank_variable() -> Option<&'static str> {
    is_rank_by(&environment)
}

fn is_rank_by(known: Known) -> Option<&'static str> {
    let [by_hand, ..] = &LAUNCHERS;
    let is_rank = |launcher: &&Launcher| {
        launcher.has_started_many(known) || (launcher.rank == by_hand.rank && known(launcher.rank).is_some())
    };
    LAUNCHERS.iter().find(is_rank).map(|launcher| launcher.rank)
}

fn launcher(known: Known) -> Option<&'static Launcher> {
    LAUNCHERS.iter().find(|launcher| known(launcher.rank).is_some())
}

fn rank_and_world(known: Known) -> Result<(usize, usize), CliError> {
    let Some(launcher) = launcher(known) else {
        let names: Vec<&str> = LAUNCHERS.iter().map(|launcher| launcher.rank).collect();
        return Err(refuse("missing", format!("a launcher sets {}", names.join(" or "))));
    };
    let needed = |name: &'static str| {
        let missing = || refuse("missing", format!("who sets {} sets {name} too", launcher.rank));
        number(name, &known(name).ok_or_else(missing)?)
    };
    Ok((needed(launcher.rank)?, needed(launcher.world)?))
}

/// This process's number among those of its host, if known. Every launcher may set `LOCAL_RANK`.
fn local_rank(known: Known) -> Result<Option<usize>, CliError> {
    let names =
        [Some(&LAUNCHERS[0]), launcher(known)].into_iter().flatten().map(|launcher| launcher.local_rank);
    let found = names.filter_map(|name| Some((name, known(name)?))).next();
    found.map(|(name, text)| number(name, &text)).transpose()
}

/// Threads for all ranks together, as if they were all on this host: those of them that are share its cores.
///
/// # Errors
/// `Argument` if the environment has an invalid value.
pub fn threads(world: usize) -> Result<NonZeroUsize, CliError> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let local = local(&environment)?.unwrap_or(world).max(1);
    Ok(NonZeroUsize::new((cores / local).max(1) * world).unwrap_or(NonZeroUsize::MIN))
}

/// Processes on this host, if known. Every launcher may set `LOCAL_WORLD_SIZE`.
fn local(known: Known) -> Result<Option<usize>, CliError> {
    let by_hand = &LAUNCHERS[0].local;
    for local in [Some(by_hand), launcher(known).map(|launcher| &launcher.local)].into_iter().flatten() {
        match *local {
            Local::Count(name) => {
                if let Some(text) = known(name) {
                    return number(name, &text).map(Some);
                }
            }
            Local::ByNode { counts, node } => {
                let (Some(text), Some(node)) = (known(counts), known(node)) else { continue };
                let count = node.parse().ok().and_then(|node| of_node(&text, node));
                let allowed = || format!("{counts} counts the tasks of each node, as 4(x2),3");
                return count.map(Some).ok_or_else(|| refuse(&text, allowed()));
            }
        }
    }
    Ok(None)
}

/// The entry of a node in Slurm's short form of a list: `4(x2),3` stands for 4, 4 and 3.
fn of_node(text: &str, mut node: usize) -> Option<usize> {
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < times {
            return count.parse().ok();
        }
        node -= times;
    }
    None
}

fn number(name: &str, text: &str) -> Result<usize, CliError> {
    text.parse().map_err(|_| refuse(text, format!("{name} is a whole number")))
}

fn refuse(value: &str, allowed: String) -> CliError {
    crate::error::refuse("--transport", value, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(variables: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
    }

    #[test]
    fn each_launcher_is_understood() {
        let check = |variables, place, local_rank| {
            let known = known(variables);
            assert_eq!(rank_and_world(&known).unwrap(), place);
            assert_eq!(local(&known).unwrap(), local_rank);
        };
        check(&[("RANK", "1"), ("WORLD_SIZE", "4"), ("SLURM_PROCID", "0")], (1, 4), None);
        check(
            &[
                ("OMPI_COMM_WORLD_RANK", "2"),
                ("OMPI_COMM_WORLD_SIZE", "8"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
                // As in a batch script of Slurm's that calls mpirun.
                ("SLURM_PROCID", "0"),
                ("SLURM_NTASKS", "1"),
            ],
            (2, 8),
            Some(4),
        );
        check(&[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")], (3, 4), Some(2));
        check(
            &[
                ("SLURM_PROCID", "9"),
                ("SLURM_NTASKS", "11"),
                ("SLURM_NODEID", "2"),
                ("SLURM_STEP_TASKS_PER_NODE", "4(x2),3"),
            ],
            (9, 11),
            Some(3),
        );
    }

    #[test]
    fn which_one_of_its_host_a_process_is() {
        let check = |variables, expected| assert_eq!(local_rank(&known(variables)).unwrap(), expected);
        check(&[("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")], Some(1));
        check(&[("SLURM_PROCID", "9"), ("SLURM_LOCALID", "3")], Some(3));
        // Set by hand together with another launcher's.
        check(&[("SLURM_PROCID", "9"), ("SLURM_LOCALID", "3"), ("LOCAL_RANK", "0")], Some(0));
        check(&[("PMI_RANK", "3")], None);
    }

    #[test]
    fn missing_or_invalid_numbers_are_errors() {
        let error = |variables| rank_and_world(&known(variables)).unwrap_err().to_string();
        assert!(error(&[]).contains("RANK or OMPI_COMM_WORLD_RANK or PMI_RANK or SLURM_PROCID"));
        assert!(error(&[("PMI_RANK", "0")]).contains("who sets PMI_RANK sets PMI_SIZE too"));
        assert!(error(&[("RANK", "one"), ("WORLD_SIZE", "2")]).contains("RANK is a whole number"));
        assert_eq!([of_node("4(x2),3", 3), of_node("4(2", 0), of_node("2", 0)], [None, None, Some(2)]);
    }

    #[test]
    fn addresses_and_tokens_are_read_or_refused() {
        assert_eq!(master("::1", "5"), "[::1]:5");
        assert_eq!(master("[::1]", "5"), "[::1]:5");
        assert_eq!(master("node-1", "5"), "node-1:5");
        assert!(token(&known(&[])).unwrap().is_empty());
        assert_eq!(token(&known(&[("TRAINWRIGHT_TOKEN", "x")])).unwrap(), Token::new("x"));
        let empty = token(&known(&[("TRAINWRIGHT_TOKEN", " ")])).unwrap_err().to_string();
        assert!(empty.contains("TRAINWRIGHT_TOKEN is a secret"), "{empty}");
    }

    #[test]
    fn only_processes_of_an_mpi_launcher_are_ranks_unasked() {
        assert_eq!(usual(&known(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")])), TransportChoice::Threads);
        assert_eq!(usual(&known(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")])), TransportChoice::Threads);
        let by_mpi = usual(&known(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "8")]));
        assert_ne!(by_mpi, TransportChoice::Threads);
        assert_eq!(is_rank_by(&known(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")])), None);
        assert_eq!(is_rank_by(&known(&[("RANK", "0"), ("WORLD_SIZE", "1")])), Some("RANK"));
        assert_eq!(is_rank_by(&known(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")])), Some("PMI_RANK"));
    }
}
