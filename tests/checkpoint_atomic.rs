//! A file is replaced as a whole or not at all, whatever happens to the process or the disk.
#![cfg(unix)]

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tch::{
    Device, Tensor,
    nn::{self, VarStore},
};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Checkpoint, O0,
    checkpoint::{CheckpointFolder, SaveError},
    optim::Sgd,
};
use tempfile::tempdir;

/// Tells a child process which folder to work in.
const FOLDER: &str = "TCH_AMP_TEST_FOLDER";

struct Run {
    weight: Tensor,
    model: AmpModel<O0, ()>,
    opt: AmpOptimizer<O0, Sgd>,
}

impl Run {
    fn new(weights: i64) -> Self {
        let store = VarStore::new(Device::Cpu);
        let weight = store.root().var("w", &[weights], nn::Init::Const(0.0));
        let (model, opt) = Amp::<O0>::builder().build((store, ()), Sgd::new(0.1)).unwrap();
        Self { weight, model, opt }
    }

    /// Saves a checkpoint in which every weight is `n`, and the value too.
    fn save(&mut self, path: &Path, n: i64) -> Result<(), SaveError> {
        let _no_grad = tch::no_grad_guard();
        let _ = self.weight.fill_(n);
        Checkpoint::new(&self.model, &mut self.opt).save(path, &n)
    }

    /// Loads a checkpoint and checks that it is one of `save`'s, all of it.
    fn load(&mut self, path: &Path) -> i64 {
        let n: i64 = Checkpoint::new(&self.model, &mut self.opt).load(path).unwrap();
        let same = self.weight.eq(n).all().int64_value(&[]);
        assert_eq!(same, 1, "some weights are not {n}");
        n
    }
}

/// Starts this test program again, to run one of its ignored tests.
fn child(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits until a child has saved its first checkpoint.
fn wait_for(child: &mut Child) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("saved")), "no line");
}

const MANY: i64 = 1 << 22;

#[test]
#[ignore = "run by another test in a process of its own"]
fn saves_until_it_is_killed() {
    let path = Path::new(&env::var(FOLDER).unwrap()).join("run.safetensors");
    let mut run = Run::new(MANY);
    let first = if path.exists() { run.load(&path) } else { 0 };
    for n in first + 1.. {
        run.save(&path, n).unwrap();
        println!("saved {n}");
    }
}

#[test]
fn a_killed_process_leaves_a_complete_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut run = Run::new(MANY);
    let mut newest = 0;
    let mut leftovers = 0;
    for round in 0..100u64 {
        let mut writer = child("saves_until_it_is_killed", folder.path()).spawn().unwrap();
        wait_for(&mut writer);
        // Anywhere in the next few files, each of which takes some milliseconds.
        thread::sleep(Duration::from_micros(round * 7919 % 30_000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let n = run.load(&path);
        assert!(n > newest, "{n} after {newest}");
        newest = n;
        leftovers += fs::read_dir(folder.path()).unwrap().count() - 1;
    }
    // The kills did hit in the middle of writing, and no leftover outlives the next save.
    assert!(leftovers > 0);
    run.save(&path, 1).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
#[ignore = "run by another test in a process of its own"]
fn meets_a_limit_of_the_disk() {
    let path = Path::new(&env::var(FOLDER).unwrap()).join("run.safetensors");
    let error = Run::new(MANY).save(&path, 2).unwrap_err();
    println!("error: {error}");
    assert!(matches!(error, SaveError::Io { .. }));
}

/// A process may write files of 1 MB at most, as if the disk were full then.
#[test]
fn a_full_disk_is_an_error_and_the_old_file_stays() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut run = Run::new(MANY);
    run.save(&path, 1).unwrap();
    let before = fs::read(&path).unwrap();
    let child = child("meets_a_limit_of_the_disk", folder.path());
    let mut limited = Command::new("sh");
    // Without the trap, a signal would end the process.
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" \"$@\""]);
    limited.arg(child.get_program()).args(child.get_args()).env(FOLDER, folder.path());
    let output = limited.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("error: cannot write `"), "{text}");
    assert!(text.contains("run.safetensors`: File too large"), "{text}");
    assert!(fs::read(&path).unwrap() == before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a leftover");
}

#[test]
#[ignore = "run by another test in a process of its own"]
fn meets_a_folder_that_it_cannot_write_to() {
    let path = Path::new(&env::var(FOLDER).unwrap()).join("run.safetensors");
    let error = Run::new(4).save(&path, 2).unwrap_err();
    println!("error: {error}");
    assert!(matches!(error, SaveError::Io { .. }));
}

#[test]
fn a_read_only_folder_is_an_error_and_the_old_file_stays() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    Run::new(4).save(&path, 1).unwrap();
    let before = fs::read(&path).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let child = child("meets_a_folder_that_it_cannot_write_to", folder.path());
    // Permissions do not bind root, unless it gives up the right to pass over them.
    let mut bound = Command::new("setpriv");
    let rights = "-dac_override,-dac_read_search";
    bound.args(["--bounding-set", rights, "--inh-caps", rights]).arg(child.get_program());
    let root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let mut command = if root { bound } else { Command::new(child.get_program()) };
    let output = command.args(child.get_args()).env(FOLDER, folder.path()).output().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("run.safetensors`: Permission denied"), "{text}");
    assert!(fs::read(&path).unwrap() == before);
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let folder = tempdir().unwrap();
    let error = Run::new(4).save(&folder.path().join("no/run.safetensors"), 1).unwrap_err();
    assert!(matches!(error, SaveError::Io { .. }), "{error}");
    let error = Run::new(4).save(Path::new("/"), 1).unwrap_err();
    assert!(matches!(error, SaveError::Io { .. }), "{error}");
}

#[test]
fn a_file_that_is_being_written_is_not_taken_for_a_leftover() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let living = folder.path().join(".run.safetensors.living.tmp");
    let dead = folder.path().join(".run.safetensors.dead.tmp");
    let other = folder.path().join(".other.safetensors.dead.tmp");
    let file = fs::File::create(&living).unwrap();
    file.lock().unwrap();
    fs::write(&dead, "").unwrap();
    fs::write(&other, "").unwrap();
    Run::new(4).save(&path, 1).unwrap();
    assert!(living.exists() && other.exists() && !dead.exists());
}

#[test]
fn a_file_that_is_being_written_is_locked() {
    let folder = tempdir().unwrap();
    let mut run = Run::new(4);
    let mut locked = 0;
    let checkpoint = Checkpoint::new(&run.model, &mut run.opt).on_progress(|_| {
        let entry = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap();
        let file = fs::File::open(entry.path()).unwrap();
        locked += usize::from(matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)));
    });
    checkpoint.save(folder.path().join("run.safetensors"), &()).unwrap();
    assert!(locked > 0);
}

#[test]
fn a_new_file_has_the_permissions_of_any_new_file() {
    let folder = tempdir().unwrap();
    let (path, plain) = (folder.path().join("run.safetensors"), folder.path().join("plain"));
    Run::new(4).save(&path, 1).unwrap();
    fs::write(&plain, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode();
    assert_eq!(mode(&path), mode(&plain));
}

#[test]
fn what_a_link_leads_to_is_replaced() {
    let folder = tempdir().unwrap();
    let (link, path) = (folder.path().join("latest"), folder.path().join("run.safetensors"));
    let mut run = Run::new(4);
    run.save(&path, 1).unwrap();
    symlink(&path, &link).unwrap();
    run.save(&link, 2).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(run.load(&path), 2);
}

#[test]
fn a_folder_keeps_the_last_checkpoints() {
    let folder = tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path().join("new")).keep(2.try_into().unwrap());
    let mut run = Run::new(4);
    assert_eq!(checkpoints.newest().unwrap(), None);
    for step in [1, 2, 3, 10] {
        let checkpoint = Checkpoint::new(&run.model, &mut run.opt);
        assert_eq!(checkpoints.save(step, checkpoint, &step).unwrap(), checkpoints.path_of(step));
    }
    assert_eq!(
        names(&folder.path().join("new")),
        ["checkpoint-00000003.safetensors", "checkpoint-00000010.safetensors"]
    );
    let newest = checkpoints.load_newest(Checkpoint::new(&run.model, &mut run.opt)).unwrap();
    assert_eq!(newest, Some(10u64));
    // A run that went back to an older step keeps what is ahead of it.
    checkpoints.save(4, Checkpoint::new(&run.model, &mut run.opt), &4).unwrap();
    assert!(checkpoints.path_of(10).exists() && checkpoints.path_of(3).exists());
}

#[test]
fn the_newest_checkpoint_is_the_newest_whole_one() {
    let folder = tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path());
    let mut run = Run::new(4);
    for step in 1..=3 {
        checkpoints.save(step, Checkpoint::new(&run.model, &mut run.opt), &step).unwrap();
    }
    let whole = fs::read(checkpoints.path_of(3)).unwrap();
    fs::write(checkpoints.path_of(3), &whole[..whole.len() - 1]).unwrap();
    let mut damaged = fs::read(checkpoints.path_of(2)).unwrap();
    let header = u64::from_le_bytes(damaged[..8].try_into().unwrap()) as usize;
    damaged[8 + header] ^= 1;
    fs::write(checkpoints.path_of(2), damaged).unwrap();
    for leftover in [".checkpoint-00000004.safetensors.x.tmp", "checkpoint-x.safetensors", "notes"]
    {
        fs::write(folder.path().join(leftover), "").unwrap();
    }
    assert_eq!(checkpoints.newest().unwrap(), Some(checkpoints.path_of(1)));
    let mut load = || checkpoints.load_newest(Checkpoint::new(&run.model, &mut run.opt));
    assert_eq!(load().unwrap(), Some(1u64));
    fs::remove_file(checkpoints.path_of(1)).unwrap();
    assert_eq!(load().unwrap(), None);
    checkpoints.save(5, Checkpoint::new(&run.model, &mut run.opt), &5).unwrap();
    assert!(!folder.path().join(".checkpoint-00000004.safetensors.x.tmp").exists());
    assert!(folder.path().join("notes").exists());
}

/// Older checkpoints are for damaged files only, not for a run that has changed.
#[test]
fn a_newest_checkpoint_that_does_not_fit_is_an_error() {
    let folder = tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path());
    let (mut run, mut other) = (Run::new(4), Run::new(5));
    checkpoints.save(1, Checkpoint::new(&other.model, &mut other.opt), &1).unwrap();
    checkpoints.save(2, Checkpoint::new(&run.model, &mut run.opt), &2).unwrap();
    let newest =
        checkpoints.load_newest::<_, _, u64>(Checkpoint::new(&other.model, &mut other.opt));
    assert!(newest.unwrap_err().to_string().contains("`w` has shape [4] in the file, [5] here"));
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
