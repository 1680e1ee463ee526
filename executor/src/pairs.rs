//! Messages between ranks in different processes that have a GPU each: by NCCL, without the host.
//!
//! Nothing waits in a circle, whatever the schedule: 1F1B's activations and gradients that cross, the ring of interleaved stages,
//! the halves of ZB-H1's backward, DualPipeV's two directions. On a GPU everything waits only for what was told before it, with
//! one exception: a send is over when its receive is, which is told later, and by another rank. Three rules keep that from doing
//! harm.
//!
//! 1. Messages from one rank to another have a communicator of their own, and on either rank a stream of their own. So a send
//!    waits behind sends to the same rank alone, and one direction never behind the other.
//! 2. A receive is told when the transport has said that its send was, and receives in the order of the sends. A message that
//!    comes before it is wanted is kept.
//! 3. Who has sent gives the memory back when the transport has said that the receive was told. So whoever uses the memory next,
//!    and waits for the send to be over, is told behind the receive.
//!
//! Let the end of a send count as told when its receive is. It waits for the op that made the message, for sends before it to the
//! same rank, whose receives were told before by rule 2, and for its receive; a receive waits for those before it of its pair, for
//! its send, and for whoever had the memory. What waits for the end of a send is told behind its receive by rule 3. So
//! everything waits for what was told before it alone, and threads wait only for other threads to tell, as with messages
//! that go through the host: there is an order in which all gets done.

use crate::collective::Members;
use crate::device::{COMPUTE, Device, PAIRS};
use crate::error::Fault;
use crate::near::end_of_loan;
use crate::tensor::Tensor;
use crate::transport::{Route, Tag, Transport, mark, tag};
use std::collections::{BTreeMap, VecDeque};
use trainwright_kernels::cuda::{Collective, Event};

/// A rank that sends, and the one that receives.
pub(crate) type Ends = (usize, usize);

/// The pairs of one rank.
pub(crate) struct Pairs<'a> {
    transport: &'a dyn Transport,
    rank: usize,
    pairs: BTreeMap<Ends, Pair>,
}

/// Messages from one rank to another.
struct Pair {
    /// The number of its group.
    group: usize,
    /// That of this rank's device.
    stream: usize,
    /// What was sent, and when it is over, as long as the other one has not said that it receives it.
    sent: VecDeque<(Tensor, Option<Event>)>,
    /// What came before it was wanted.
    early: BTreeMap<Tag, Tensor>,
}

impl<'a> Pairs<'a> {
    /// Those of `rank` among all, whose groups are numbered from `first` on.
    pub fn new(transport: &'a dyn Transport, all: &[Ends], rank: usize, first: usize) -> Self {
        let numbered = all.iter().zip(first..);
        let own = numbered.filter(|((from, to), _)| [*from, *to].contains(&rank));
        let pair = |(stream, (ends, group)): (usize, (&Ends, usize))| {
            let (sent, early) = (VecDeque::new(), BTreeMap::new());
            (*ends, Pair { group, stream, sent, early })
        };
        Self { transport, rank, pairs: (PAIRS..).zip(own).map(pair).collect() }
    }

    /// Those of this rank as groups, in the order of their numbers.
    pub fn groups(&self) -> Vec<Members> {
        let members = |(ends, pair): (&Ends, &Pair)| {
            let place = usize::from(ends.1 == self.rank);
            Members { group: pair.group, ranks: vec![ends.0, ends.1], place }
        };
        self.pairs.iter().map(members).collect()
    }

    /// The stream for messages between two ranks, if they go this way.
    pub fn stream(&self, ends: Ends) -> Option<usize> {
        self.pairs.get(&ends).map(|pair| pair.stream)
    }

    /// Sends a tensor on the selected stream, which must be the pair's.
    pub fn send(&mut self, device: &dyn Device, route: Route, tensor: Tensor) {
        let pair = self.pairs.get_mut(&(route.from, route.to)).expect("its ends are a pair");
        let from = tensor.slice().device();
        device.collective(pair.group, Collective::Send { x: from.at, count: from.length }, from.number);
        self.transport.send(Route { tag: Tag::Sent, ..route }, note(route.tag, tensor.rows()));
        pair.sent.push_back((tensor, device.moment()));
        while !pair.sent.is_empty()
            && self.transport.look(Route { tag: Tag::Taken, ..route.back() }).is_some()
        {
            pair.sent.pop_front().into_iter().for_each(|sent| give_back(device, sent));
        }
    }

    /// The tensor of a route, received on the selected stream, which must be the pair's.
    pub fn receive(&mut self, device: &dyn Device, route: Route, width: usize) -> Result<Tensor, Fault> {
        let pair = self.pairs.get_mut(&(route.from, route.to)).expect("its ends are a pair");
        loop {
            if let Some(tensor) = pair.early.remove(&route.tag) {
                return Ok(tensor);
            }
            let said = self.transport.receive(Route { tag: Tag::Sent, ..route })?;
            let lost = || Fault::Lost { rank: route.from, how: "what it sends cannot be read".into() };
            let (tag, rows) = read_note(&said).ok_or_else(lost)?;
            let mut tensor = Tensor::any_on(device, rows, width);
            let to = tensor.slice_mut().device();
            device.collective(pair.group, Collective::Receive { x: to.at, count: to.length }, to.number);
            self.transport.send(Route { tag: Tag::Taken, ..route.back() }, vec![1.0]);
            pair.early.insert(tag, tensor);
        }
    }

    /// Waits until every receiver has said that it receives: at the end of a step, in which all do.
    pub fn take_all_back(&mut self, device: &dyn Device) -> Result<(), Fault> {
        for ((from, to), pair) in &mut self.pairs {
            while let Some(sent) = pair.sent.pop_front() {
                self.transport.receive(Route { from: *to, to: *from, tag: Tag::Taken })?;
                give_back(device, sent);
            }
        }
        Ok(())
    }
}

/// What was sent, as soon as the send is over. The stream that sends may be told to send more meanwhile, and is not waited for.
fn give_back(device: &dyn Device, (tensor, over): (Tensor, Option<Event>)) {
    let selected = device.select(COMPUTE);
    end_of_loan(device, &tensor, over.as_ref());
    drop(tensor);
    device.select(selected);
}

/// Which message it is, and its rows. An `f32` holds each of these numbers.
fn note(own: Tag, rows: usize) -> Vec<f32> {
    mark(own).into_iter().chain([rows as u32]).map(|number| number as f32).collect()
}

fn read_note(said: &[f32]) -> Option<(Tag, usize)> {
    let [kind, first, second, rows] = <[f32; 4]>::try_from(said).ok()?.map(|number| number as u32);
    Some((tag([kind, first, second])?, rows as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Communicator;
    use crate::device::{DeviceKind, Here, Opening, Place};
    use crate::reach::Way;
    use crate::settings::Settings;
    use crate::steady::GraphUse;
    use crate::tokens::Tokens;
    use crate::train::Outcome;
    use crate::train_in_processes;
    use crate::transport::{Mailboxes, Meets, Rendezvous};
    use std::rc::Rc;
    use std::time::Duration;
    use trainwright_kernels::Threads;
    use trainwright_kernels::cuda::Number;
    use trainwright_spec::mesh::Mesh;
    use trainwright_spec::model::hf::from_hugging_face;
    use trainwright_spec::plan::{Plan, Recompute, StageBlocks};
    use trainwright_spec::program::{Axis, Channel};

    /// An emulated GPU for each rank, also where ranks are processes: those of this test are threads that meet by TCP.
    fn gpus() -> DeviceKind {
        let gpu = |place: Place| Some((place.local as u128 + 1).to_le_bytes());
        DeviceKind { gpu, ..DeviceKind::from_name("emulated-gpus").unwrap() }
    }

    /// Whether the emulator can be had.
    fn is_there() -> bool {
        (gpus().require)().inspect_err(|error| println!("skipped: {error}")).is_ok()
    }

    fn plan([pipeline, virtual_stages]: [usize; 2], schedule: &str) -> Plan {
        let stages = vec![format!("{} none", 12 / (pipeline * virtual_stages)); pipeline * virtual_stages];
        let cluster = if pipeline == 2 { "h100-pcie-pair" } else { "a100-pcie-4-bridged:1" };
        let text = format!(
            r#"
            model = "gpt2"
            cluster = "{cluster}"
            stack = "trainwright"
            job = {{ sequence = 8, global_batch = 4, precision = "bf16", optimizer = "adamw", gradient_clipping = true }}
            mesh = {{ tensor = 1, pipeline = {pipeline}, data = 1 }}
            micro_batch = 1
            schedule = "{schedule}"
            virtual_stages = {virtual_stages}
            sequence_parallel = false
            data_sharding = "none"
            stages = {stages:?}
            "#
        );
        let small = r#"{"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 4, "n_positions": 8, "vocab_size": 20,
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}"#;
        let model = from_hugging_face(small, "config.json").unwrap();
        let blocks = 4 / stages.len();
        let stages = stages.iter().map(|_| StageBlocks(vec![Recompute::None; blocks])).collect();
        Plan { model, stages, ..Plan::from_toml(&text, "plan.toml").unwrap() }
    }

    fn settings(device: DeviceKind) -> Settings {
        Settings { steps: 2, device, ..Settings::default() }
    }

    /// What rank 0 tells of a run whose ranks meet as processes do.
    fn by_processes(plan: &Plan, settings: Settings) -> Outcome {
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string();
        let world = plan.mesh.ranks();
        let (tokens, free) = (Tokens::synthetic(20, 500, 3), &free);
        let run = |rank| {
            let patience = Duration::from_secs(60);
            let place = Rendezvous { rank, world, local: None, meets: Meets::At(free.clone()), patience };
            train_in_processes(&place, plan, &tokens, &settings, &mut |_| {}).unwrap()
        };
        let run = &run;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..world).map(|rank| scope.spawn(move || run(rank))).collect();
            let ends = threads.into_iter().map(|thread| thread.join().unwrap());
            ends.flatten().next().expect("rank 0 tells")
        })
    }

    fn losses(outcome: &Outcome) -> Vec<u64> {
        outcome.steps.iter().map(|step| step.loss.to_bits()).collect()
    }

    #[test]
    fn every_schedule_gives_the_losses_of_messages_through_the_host() {
        if !is_there() {
            return;
        }
        for (shape, schedule) in
            [([4, 1], "1f1b"), ([2, 2], "interleaved"), ([4, 1], "zb-h1"), ([2, 2], "dualpipev")]
        {
            let plan = plan(shape, schedule);
            let by_nccl = by_processes(&plan, settings(gpus()));
            assert_eq!(by_nccl.ways[&Axis::Pipeline], Way::Nccl, "{schedule}");
            let by_host = by_processes(&plan, settings(DeviceKind::from_name("emulated").unwrap()));
            assert!(by_host.ways.is_empty(), "{schedule}: {:?}", by_host.ways);
            assert_eq!(losses(&by_nccl), losses(&by_host), "{schedule}");
        }
    }

    /// A graph holds the collectives of ranks that have a process and a GPU each: the bits are those of ops told one by one.
    #[test]
    fn a_graph_holds_the_collectives_of_processes() {
        if !is_there() {
            return;
        }
        let stages = vec![StageBlocks(vec![Recompute::None; 4])];
        let plan = Plan { mesh: Mesh::new(2, 1, 1), stages, ..plan([2, 1], "1f1b") };
        let run = |graph| by_processes(&plan, Settings { steps: 7, graph, ..settings(gpus()) });
        let [with, without] = [true, false].map(run);
        assert_eq!(with.ways[&Axis::Tensor], Way::Nccl);
        assert!(matches!(with.graph, Some(GraphUse::From(4 | 5))), "{:?}", with.graph);
        assert_eq!(without.graph, Some(GraphUse::No("it was turned off".into())));
        assert_eq!(losses(&with), losses(&without));
    }

    /// What each of two ranks makes of the pair that they are, on an emulated GPU of its own.
    fn both<R: Send>(work: impl Fn(usize, &dyn Device, &mut Pairs) -> R + Sync) -> [R; 2] {
        let mailboxes = Mailboxes::new(2);
        let rank = |rank: usize| {
            let opening = Opening {
                local: rank,
                threads: Threads::ONE,
                number: Number::F32,
                attention: None,
                deterministic: false,
            };
            let device = (gpus().open)(opening).unwrap();
            let _here = Here::is(Rc::clone(&device));
            let mut pairs = Pairs::new(&mailboxes, &[(0, 1)], rank, 5);
            let mut communicator = Communicator::new(&mailboxes);
            pairs.groups().iter().for_each(|members| communicator.enter(&*device, members).unwrap());
            device.select(pairs.stream((0, 1)).unwrap());
            work(rank, &*device, &mut pairs)
        };
        let rank = &rank;
        std::thread::scope(|scope| {
            [0, 1].map(|own| scope.spawn(move || rank(own))).map(|own| own.join().unwrap())
        })
    }

    fn route(microbatch: usize) -> Route {
        Route { from: 0, to: 1, tag: Tag::Stage(Channel::Activation(0), microbatch) }
    }

    #[test]
    fn what_comes_before_it_is_wanted_is_kept() {
        if !is_there() {
            return;
        }
        let seen = both(|rank, device, pairs| {
            if rank == 0 {
                for microbatch in [0, 1, 2] {
                    let rows = vec![microbatch as f32; 8 * (microbatch + 1)];
                    pairs.send(device, route(microbatch), Tensor::take_to(device, rows, 8));
                }
                pairs.take_all_back(device).unwrap();
                return Vec::new();
            }
            [2, 0, 1].map(|number| pairs.receive(device, route(number), 8).unwrap().into_vec()).to_vec()
        });
        assert_eq!(seen[1], [vec![2.0; 24], vec![0.0; 8], vec![1.0; 16]]);
    }

    /// The emulator sees who breaks the third rule.
    #[test]
    fn nobody_waits_for_a_message_that_nobody_receives() {
        if !is_there() {
            return;
        }
        let seen = both(|rank, device, pairs| {
            if rank == 1 {
                return String::new();
            }
            pairs.send(device, route(0), Tensor::take_to(device, vec![1.0; 8], 8));
            let over = device.moment().unwrap();
            device.select(COMPUTE);
            let waits = std::panic::AssertUnwindSafe(|| device.wait(&over));
            let panic = std::panic::catch_unwind(waits).unwrap_err();
            panic.downcast_ref::<String>().cloned().unwrap()
        });
        assert!(seen[0].contains("sends what nobody receives yet, and is waited for"), "{}", seen[0]);
    }
}
