//! `kernel`: one kernel of an inference library, its time, what bounds it, and the likest measurement.

use crate::arguments::KernelArguments;
use crate::error::{CliError, Outcome, refuse};
use crate::render::{json, kernels as page};
use crate::{inputs, output};
use trainwright_evidence::kernels::nearest;
use trainwright_sim::libraries::{
    AllReduce, Call, Chip, Decode, Exchange, Experts, Latent, Prefill, Product, Wanted, estimate,
};
use trainwright_spec::catalog;
use trainwright_spec::cluster::Gpu;
use trainwright_spec::library::Library;
use trainwright_spec::units::Bytes;

/// Runs the command.
///
/// # Errors
/// Bad input, or a call that no measured kernel does.
pub fn run(arguments: &KernelArguments) -> Result<Outcome, CliError> {
    let cluster = arguments.cluster.as_deref().map(|name| inputs::cluster(name, &[])).transpose()?;
    let gpu = arguments.gpu.as_deref().map(gpu).transpose()?;
    let chip = match (&cluster, &gpu) {
        (Some(cluster), _) => Chip::of(cluster),
        (None, gpu) => Chip::new(gpu.as_ref().expect("either is required")),
    };
    check_companions(arguments)?;
    let call = call(arguments)?;
    if let Some(name) = &arguments.library
        && !Library::all().iter().any(|library| &library.name == name)
    {
        let known: Vec<&str> = Library::all().iter().map(|library| library.name.as_str()).collect();
        return Err(refuse("--library", name, format!("the catalog has {}", known.join(", "))));
    }
    if let Some((gpus, argument)) = gpus(arguments) {
        let Some(cluster) = &cluster else {
            return Err(refuse(argument, gpus, "it depends on the links: give `--cluster`, not `--gpu`"));
        };
        let most = cluster.node.gpus.value;
        if !(2..=most).contains(&gpus) {
            return Err(refuse(argument, gpus, format!("a node has {most} GPUs: give 2 to {most}")));
        }
    }
    let (library, kernel) = (arguments.library.as_deref(), arguments.kernel.as_deref());
    let wanted = Wanted { library, kernel, latency: None };
    let estimate = estimate(&call, &chip, &wanted)
        .map_err(|unknown| CliError::NoAnswer { reason: unknown.to_string() })?;
    let nearest = nearest::nearest(&call, &chip, &estimate.library);
    let answer = page::Answer { call: &call, chip: &chip, estimate: &estimate, nearest: nearest.as_ref() };
    match arguments.json {
        true => output::print(&json::print(&answer.json()))?,
        false => output::print(&answer.text())?,
    }
    Ok(Outcome::Done)
}

fn gpu(name: &str) -> Result<Gpu, CliError> {
    let text = catalog::text("gpu", name).map_err(|error| CliError::of_input(Some("--gpu"), error))?;
    Ok(toml::from_str(text).expect("the catalog can be read"))
}

/// How many GPUs take part, and the argument that says so.
fn gpus(arguments: &KernelArguments) -> Option<(usize, &'static str)> {
    let of_sum = arguments.all_reduce.map(|[gpus, _]| (gpus, "--all-reduce"));
    of_sum.or(arguments.exchange.map(|[gpus, ..]| (gpus, "--exchange")))
}

fn call(arguments: &KernelArguments) -> Result<Call, CliError> {
    let (operands, window) = (arguments.dtype, arguments.window);
    if let Some([m, n, k]) = arguments.gemm {
        return Ok(Call::Product(Product { m, n, k, operands }));
    }
    if let Some([batch, heads, kv_heads, head_dim, history]) = arguments.decode {
        check_heads("--decode", heads, kv_heads)?;
        return Ok(Call::Decode(Decode {
            batch,
            heads,
            kv_heads,
            head_dim,
            history,
            window,
            cache: operands,
        }));
    }
    if let Some([batch, heads, kv_heads, head_dim, queries]) = arguments.prefill {
        check_heads("--prefill", heads, kv_heads)?;
        let history = arguments.history as usize;
        let (value_head_dim, math, cache) = (head_dim, operands.units, operands);
        return Ok(Call::Prefill(Prefill {
            batch,
            heads,
            kv_heads,
            head_dim,
            value_head_dim,
            queries,
            history,
            window,
            math,
            cache,
        }));
    }
    if let Some([batch, heads, history]) = arguments.mla_decode {
        return Ok(Call::Latent(Latent { batch, heads, history, cache: operands }));
    }
    if let Some([tokens, hidden, inner, experts, chosen]) = arguments.experts {
        if chosen > experts {
            return Err(refuse(
                "--experts",
                chosen,
                format!("a token goes to at most all {experts} experts"),
            ));
        }
        let (tensor_parallel, expert_parallel) = (arguments.tp, arguments.ep);
        for (argument, parts, whole, what) in [
            ("--ep", expert_parallel, experts, "experts"),
            ("--tp", tensor_parallel, inner, "columns of an expert"),
        ] {
            if !whole.is_multiple_of(parts) {
                return Err(refuse(argument, parts, format!("it must divide the {whole} {what}")));
            }
        }
        return Ok(Call::Experts(Experts {
            tokens,
            hidden,
            inner,
            experts,
            chosen,
            tensor_parallel,
            expert_parallel,
            gated: true,
            skewed: false,
            exchanged: false,
            operands,
        }));
    }
    if let Some([gpus, bytes]) = arguments.all_reduce {
        return Ok(Call::AllReduce(AllReduce { gpus, message: Bytes::new(bytes as f64) }));
    }
    let [gpus, tokens, hidden, chosen] = arguments.exchange.expect("one of the calls is required");
    Ok(Call::Exchange(Exchange { gpus, tokens, hidden, chosen, element: operands }))
}

/// Refuses arguments that the call does not read. (Of arguments that exclude each other, clap does not require any.)
fn check_companions(arguments: &KernelArguments) -> Result<(), CliError> {
    let attends = arguments.decode.is_some() || arguments.prefill.is_some();
    let companions = [
        ("--history", arguments.history as usize, 0, arguments.prefill.is_some(), "`--prefill`"),
        ("--window", arguments.window.unwrap_or(0), 0, attends, "`--decode` or `--prefill`"),
        ("--tp", arguments.tp, 1, arguments.experts.is_some(), "`--experts`"),
        ("--ep", arguments.ep, 1, arguments.experts.is_some(), "`--experts`"),
    ];
    for (argument, value, usual, is_read, of) in companions {
        if value != usual && !is_read {
            return Err(refuse(argument, value, format!("it goes with {of}")));
        }
    }
    Ok(())
}

/// Each head of keys and values serves the same number of query heads.
fn check_heads(argument: &'static str, heads: usize, kv_heads: usize) -> Result<(), CliError> {
    match heads.is_multiple_of(kv_heads) {
        true => Ok(()),
        false => {
            let allowed = format!("heads of keys and values divide the {heads} query heads");
            Err(refuse(argument, kv_heads, allowed))
        }
    }
}
