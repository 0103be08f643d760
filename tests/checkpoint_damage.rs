//! Damaged files are refused with what is wrong and where, and nothing is changed.

mod common;

use std::{fs, path::Path};

use common::{Net, mse, noise};
use half::bf16;
use safetensors::SafeTensors;
use tch::{Kind, Tensor, nn::ModuleT};
use tch_amp::{
    Amp, AmpModel, AmpOptimizer, Checkpoint, Dynamic, O2, checkpoint::LoadError, optim::Adam,
};
use tempfile::tempdir;

struct Run {
    model: AmpModel<O2<bf16>, Net>,
    opt: AmpOptimizer<O2<bf16>, Adam>,
}

impl Run {
    /// A run after some steps, with a scale that is not the first.
    fn new(seed: u64, steps: u64) -> Self {
        let scale = Dynamic::new().init_scale(1024.0).growth_interval(2);
        let builder = Amp::<O2<bf16>>::builder().loss_scale(scale);
        let (model, opt) = builder.build(Net::seeded(seed), Adam::new(1e-2)).unwrap();
        let mut run = Self { model, opt };
        (0..steps).for_each(|step| run.step(step));
        run
    }

    fn step(&mut self, seed: u64) {
        let (xs, ys) = (noise(seed, &[8, Net::INPUTS]), noise(seed + 1, &[8, Net::OUTPUTS]));
        self.opt.backward_step(&mse(&self.model.forward_t(&xs, true), &ys)).unwrap();
    }

    fn save(&mut self, path: &Path) {
        Checkpoint::new(&self.model, &mut self.opt).save(path, &"value").unwrap();
    }

    fn load(&mut self, path: &Path) -> Result<String, LoadError> {
        Checkpoint::new(&self.model, &mut self.opt).load(path)
    }

    fn load_weights(&mut self, path: &Path) -> Result<(), LoadError> {
        Checkpoint::new(&self.model, &mut self.opt).load_weights(path)
    }

    /// All that a load could change, libtorch's generator excepted, which other tests use too.
    fn state(&mut self) -> Vec<(String, Vec<u8>)> {
        let folder = tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        self.save(&path);
        let bytes = fs::read(&path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors =
            file.iter().filter(|(name, _)| !["generator/cpu", "tch-amp/checksums"].contains(name));
        let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec()));
        let strings = header.metadata().clone().unwrap().into_iter();
        let strings = strings.map(|(name, value)| (name, value.into_bytes()));
        let variables = self.model.variables().into_iter().map(|(name, t)| (name, raw(&t)));
        let mut state: Vec<_> = strings.chain(tensors).chain(variables).collect();
        state.sort();
        state
    }
}

fn raw(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
    tensor.copy_data_u8(&mut bytes, tensor.numel());
    bytes
}

/// A file of a run, the bytes in it, and another run that it could be loaded into.
fn written() -> (tempfile::TempDir, Vec<u8>, Run) {
    let folder = tempdir().unwrap();
    Run::new(1, 3).save(&folder.path().join("run.safetensors"));
    let bytes = fs::read(folder.path().join("run.safetensors")).unwrap();
    (folder, bytes, Run::new(2, 2))
}

/// Where the tensors begin.
fn header_end(bytes: &[u8]) -> usize {
    8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
}

/// The part that a tensor takes.
fn range(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    let data = header_end(bytes);
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let offset = |n: usize| header[name]["data_offsets"][n].as_u64().unwrap() as usize;
    data + offset(0)..data + offset(1)
}

#[test]
fn no_single_bit_can_change_unnoticed() {
    let (folder, bytes, mut run) = written();
    let path = folder.path().join("flipped.safetensors");
    let before = run.state();
    let places = bytes.len() * 8;
    // All of the first bytes, then places spread over the whole file.
    for place in (0..200).chain((200..places).step_by(places / 1500)) {
        let mut flipped = bytes.clone();
        flipped[place / 8] ^= 1 << (place % 8);
        fs::write(&path, &flipped).unwrap();
        for loaded in [run.load(&path).map(drop), run.load_weights(&path)] {
            let error = loaded.expect_err(&format!("bit {place} of {places}"));
            assert!(
                matches!(
                    error,
                    LoadError::Damaged { .. } | LoadError::Header { .. } | LoadError::Length { .. }
                ),
                "bit {place}: {error}"
            );
            assert!(error.to_string().contains("flipped.safetensors"), "{error}");
        }
    }
    assert!(run.state() == before);
    assert_eq!(run.load(&folder.path().join("run.safetensors")).unwrap(), "value");
    assert!(run.state() != before);
}

#[test]
fn the_damaged_part_is_named() {
    let (folder, bytes, mut run) = written();
    let path = folder.path().join("damaged.safetensors");
    let mut part_of = |place: usize| {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        match run.load(&path).unwrap_err() {
            LoadError::Damaged { part, .. } => part,
            other => panic!("{other}"),
        }
    };
    let inside = |name| range(&bytes, name).start + 2;
    assert_eq!(part_of(inside("first.weight")), "`first.weight`");
    assert_eq!(part_of(inside("norm.running_var")), "`norm.running_var`");
    let state = "optimizer/exp_avg_sq/last.bias";
    assert_eq!(part_of(inside(state)), format!("`{state}`"));
    assert_eq!(part_of(inside("generator/cpu")), "`generator/cpu`");
    assert_eq!(part_of(inside("tch-amp/value")), "`tch-amp/value`");
    assert_eq!(part_of(inside("tch-amp/checksums")), "the checksums");
    // A digit of a number in the metadata: the JSON is as good as before.
    let text = std::str::from_utf8(&bytes[8..header_end(&bytes)]).unwrap();
    let key = r#"unskipped\":"#;
    let digit = 8 + text.find(key).unwrap() + key.len();
    let mut damaged = bytes.clone();
    damaged[digit] = if damaged[digit] == b'1' { b'0' } else { b'1' };
    fs::write(&path, &damaged).unwrap();
    let error = run.load(&path).unwrap_err();
    assert!(matches!(&error, LoadError::Damaged { part, .. } if part == "the header"), "{error}");
}

#[test]
fn a_file_that_was_cut_off_or_added_to_is_refused() {
    let (folder, bytes, mut run) = written();
    let path = folder.path().join("cut.safetensors");
    let before = run.state();
    let lengths = (0..20)
        .chain((20..bytes.len()).step_by(997))
        .chain([header_end(&bytes) - 1, bytes.len() - 1]);
    for length in lengths {
        fs::write(&path, &bytes[..length]).unwrap();
        let error = run.load(&path).unwrap_err();
        let short = length < 8;
        let named = match error {
            LoadError::Header { .. } => short,
            LoadError::Length { found, expected, .. } => {
                found == length as u64 && expected > found && !short
            }
            _ => false,
        };
        assert!(named, "{length} of {} bytes", bytes.len());
    }
    let mut longer = bytes.clone();
    longer.push(0);
    fs::write(&path, &longer).unwrap();
    let error = run.load(&path).unwrap_err();
    assert!(error.to_string().ends_with("it was added to"), "{error}");
    assert!(run.state() == before);
}

/// A header may ask for as much memory as it likes.
#[test]
fn a_header_that_claims_to_be_huge_is_not_believed() {
    let (folder, bytes, mut run) = written();
    let path = folder.path().join("huge.safetensors");
    for claim in [u64::MAX, 1 << 40, 99_999_999] {
        let mut huge = bytes.clone();
        huge[..8].copy_from_slice(&claim.to_le_bytes());
        fs::write(&path, &huge).unwrap();
        let error = run.load(&path).unwrap_err();
        assert!(
            matches!(error, LoadError::Header { .. } | LoadError::Length { .. }),
            "{claim}: {error}"
        );
    }
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let (folder, _, mut run) = written();
    let path = folder.path().join("text.safetensors");
    fs::write(&path, "this is no safetensors file").unwrap();
    assert!(matches!(run.load(&path).unwrap_err(), LoadError::Header { .. }));
    let missing = folder.path().join("missing.safetensors");
    let error = run.load(&missing).unwrap_err();
    assert!(matches!(error, LoadError::Io { .. }), "{error}");
    assert!(error.to_string().contains("missing.safetensors"), "{error}");
    let error = run.load(folder.path()).unwrap_err();
    assert!(matches!(error, LoadError::Io { .. }), "{error}");

    let weights = folder.path().join("weights.safetensors");
    Tensor::write_safetensors(
        &[("w", Tensor::ones([2], (Kind::Float, tch::Device::Cpu)))],
        &weights,
    )
    .unwrap();
    let error = run.load(&weights).unwrap_err();
    assert!(
        error.to_string().ends_with("holds weights only: read it with `load_weights`"),
        "{error}"
    );
}

/// A whole file with something else in its header.
fn with_header(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let data = header_end(bytes);
    let header = std::str::from_utf8(&bytes[8..data]).unwrap();
    assert!(header.contains(from), "{header}");
    let header = header.replacen(from, to, 1);
    // The header's own checksum is the first, and the last is that of the others.
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let header_sum = crc32fast::hash(&file);
    file.extend(&bytes[data..]);
    let sums = range(&file, "tch-amp/checksums");
    file[sums.start..sums.start + 4].copy_from_slice(&header_sum.to_le_bytes());
    let own = crc32fast::hash(&file[sums.start..sums.end - 4]);
    file[sums.end - 4..].copy_from_slice(&own.to_le_bytes());
    file
}

/// What a later version of the crate writes.
#[test]
fn a_file_of_another_version_is_refused_by_its_version() {
    let (folder, bytes, mut run) = written();
    let path = folder.path().join("later.safetensors");
    let later = with_header(&bytes, r#"{\"version\":1,"#, r#"{\"version\":2,\"new\":true,"#);
    fs::write(&path, later).unwrap();
    let error = run.load(&path).unwrap_err();
    assert!(matches!(error, LoadError::Version { version: 2, .. }), "{error}");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let (folder, bytes, mut run) = written();
    let path = folder.path().join("edited.safetensors");
    let before = run.state();
    for (to, expected) in [
        (r#"\"lr\":-0.01"#, "Adam: `lr` is -0.01: it must be finite and not negative"),
        (r#"\"rate\":0.01"#, "unknown field `rate`"),
    ] {
        fs::write(&path, with_header(&bytes, r#"\"lr\":0.01"#, to)).unwrap();
        let error = run.load(&path).unwrap_err();
        assert!(matches!(error, LoadError::Setting { optimizer: 0, .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(run.state() == before);
}
