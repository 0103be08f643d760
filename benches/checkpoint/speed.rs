//! Speed, in bytes a second.

use std::{
    fs::{self, File},
    path::Path,
    time::Instant,
};

use tch_amp::{Checkpoint, config::DType};

use crate::{Outcome, net};

/// Measures saving and loading in a folder and prints a table.
///
/// A checkpoint is brought to the disk before it counts as saved, so the same is asked of the
/// VarStore's file.
pub fn table(folder: &Path, layers: u32, rounds: u32) -> Outcome {
    let folder = tempfile::tempdir_in(folder)?;
    let (ours, theirs) =
        (folder.path().join("ours.safetensors"), folder.path().join("theirs.safetensors"));
    let model = net::model(layers)?;
    let (mut store, _net) = net::store(layers);
    let (trained, mut opt) = net::trained(layers)?;

    println!("\nin {}:\n", folder.path().parent().unwrap_or(folder.path()).display());
    println!("| what | GB/s | tch's GB/s | ratio |");
    println!("| --- | --- | --- | --- |");
    let weights = net::bytes(layers);
    let save_store = |store: &tch::nn::VarStore| -> Outcome<f64> {
        remove(&theirs)?;
        timed(|| {
            store.save(&theirs)?;
            Ok(File::open(&theirs)?.sync_all()?)
        })
    };
    let export = || {
        remove(&ours)?;
        timed(|| Ok(Checkpoint::new(&model, ()).export_weights(&ours, DType::F32)?))
    };
    let seconds = in_turns(rounds, export, || save_store(&store))?;
    row("weights, saved", seconds, (weights, weights));
    let load = || timed(|| Ok(Checkpoint::new(&model, ()).load_weights(&ours)?));
    let seconds = in_turns(rounds, load, || timed(|| Ok(store.load(&ours)?)))?;
    row("weights, loaded", seconds, (weights, weights));

    let save = || {
        remove(&ours)?;
        timed(|| Ok(Checkpoint::new(&trained, &mut opt).save(&ours, &())?))
    };
    let seconds = in_turns(rounds, save, || save_store(&store))?;
    row("whole checkpoint, saved; tch: weights", seconds, (3 * weights, weights));
    let load = || timed(|| Ok(Checkpoint::new(&trained, &mut opt).load::<()>(&ours)?));
    let seconds = in_turns(rounds, load, || timed(|| Ok(store.load(&theirs)?)))?;
    row("whole checkpoint, loaded; tch: weights", seconds, (3 * weights, weights));
    Ok(())
}

/// Each file is made anew: to write over an old one takes other time.
fn remove(path: &Path) -> std::io::Result<()> {
    if path.exists() { fs::remove_file(path) } else { Ok(()) }
}

fn timed(work: impl FnOnce() -> Outcome) -> Outcome<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// The medians of two that take turns, the first round thrown away.
fn in_turns(
    rounds: u32,
    mut one: impl FnMut() -> Outcome<f64>,
    mut other: impl FnMut() -> Outcome<f64>,
) -> Outcome<(f64, f64)> {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..=rounds {
        ones.push(one()?);
        others.push(other()?);
    }
    Ok((median(&mut ones[1..]), median(&mut others[1..])))
}

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn row(what: &str, (ours, theirs): (f64, f64), (our_bytes, their_bytes): (u64, u64)) {
    let (our_rate, their_rate) = (our_bytes as f64 / ours / 1e9, their_bytes as f64 / theirs / 1e9);
    println!("| {what} | {our_rate:.2} | {their_rate:.2} | {:.2} |", our_rate / their_rate);
}
