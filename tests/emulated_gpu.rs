//! The whole way of a GPU: kernels compiled, cached, loaded and launched by this crate, in processes
//! of their own whose CUDA driver runs them on the CPU, thread by thread. With
//! `TCH_AMP_TEST_DEVICE=cuda`, training runs on the first GPU instead.

mod common;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output},
};

use common::{bits, device, noise};
use tch::{
    Device, Kind, Tensor,
    nn::{Module, VarStore},
};
use tch_amp::{
    Amp, AnyLevel, Dynamic, O2, O3, OptLevel, Optimizer, Rounding, Static, StepOutcome, bf16, f16,
    optim::{Adagrad, Adam, AdamW, Lamb, Sgd},
    with_level,
};
use tch_amp_emulator::DRIVER;
use tempfile::tempdir;

/// The sum of all products of inputs and weights: a weight's gradient is its input.
#[derive(Debug)]
struct Products(Vec<Tensor>);

impl Module for Products {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let xs = xs.to_device(device()).to_kind(self.0[0].kind());
        let product =
            |w: &Tensor| (w * xs.narrow(0, 0, w.numel() as i64).view_as(w)).sum(Kind::Float);
        self.0.iter().map(product).sum()
    }
}

/// Tensors of no element, of one, of some that are no whole vector, of several chunks.
const SIZES: [i64; 6] = [0, 1, 7, 1000, 8193, 40_003];

fn products(seed: u64, sizes: &[i64]) -> (VarStore, Products) {
    let store = VarStore::new(device());
    let weight = |(n, &size): (usize, &i64)| {
        store.root().var_copy(&format!("w{n}"), &noise(seed + n as u64, &[size]))
    };
    let weights = sizes.iter().enumerate().map(weight).collect();
    (store, Products(weights))
}

/// Prints the digest of weights and masters after some steps.
fn train<L: OptLevel>(name: &str, optimizer: impl Optimizer) {
    let builder = Amp::<L>::builder().loss_scale(Static::new(64.0));
    let (model, mut opt) = builder.build(products(1, &SIZES), optimizer).unwrap();
    for n in 0..4 {
        let xs = noise(100 + n, &[SIZES[5]]);
        let mut step = opt.begin();
        for _ in 0..=n % 2 {
            step.backward(&model.forward(&xs)).unwrap();
        }
        assert!(step.unscale().unwrap().step().unwrap().is_applied());
    }
    let mut variables: Vec<_> = model.variables().into_iter().collect();
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    let weights: Vec<_> = variables.iter().map(|(_, weight)| bits(weight)).collect();
    let masters: Vec<_> = opt.master_params().map(|(_, master)| bits(master)).collect();
    println!("bits {name} {weights:?} {masters:?}");
}

/// Prints norms, which are sums in another order than the CPU's.
fn norms<L: OptLevel>(level: AnyLevel) {
    let (model, mut opt) = Amp::<L>::builder()
        .loss_scale(Static::new(64.0))
        .build(products(2, &SIZES), AdamW::new(1e-2))
        .unwrap();
    for n in 0..3 {
        let mut step = opt.begin();
        step.backward(&model.forward(&noise(200 + n, &[SIZES[5]]))).unwrap();
        let mut step = step.unscale().unwrap();
        let before = step.clip_grad_norm(0.5).unwrap();
        let after = step.grad_norm().unwrap();
        println!("norm {level} {:e} {:e}", before.value(), after.value());
        assert!(step.step().unwrap().is_applied());
    }
}

/// Prints what steps with infinities and NaN do.
fn overflows() {
    let scale = Dynamic::new().init_scale(1024.0).growth_interval(2);
    let builder = Amp::<O2<f16>>::builder().loss_scale(scale);
    let (model, mut opt) = builder.build(products(3, &SIZES), Sgd::new(0.1)).unwrap();
    for bad in [0.0, f64::INFINITY, f64::NAN, 0.0, 0.0, 1e30, 0.0] {
        let loss = (model.forward(&noise(4, &[SIZES[5]])) * (1.0 + bad)) * 1e-3;
        match opt.backward_step(&loss).unwrap().outcome() {
            StepOutcome::Skipped { overflows } => println!("outcome {}", overflows[0]),
            outcome => println!("outcome {outcome:?} {}", opt.scalers()[0].scale()),
        }
    }
    let weights: Vec<_> = opt.master_params().map(|(_, master)| bits(master)).collect();
    println!("outcome {weights:?}");
}

/// Prints what comes of layouts that kernels cannot take as they are.
fn layouts() {
    let store = VarStore::new(device());
    let root = store.root();
    let wide = root.var_copy("wide", &noise(5, &[64, 33]));
    let columns = root.var_copy("columns", &noise(6, &[64, 33]).tr().contiguous().tr());
    let frozen = root.var_copy("frozen", &noise(7, &[50]));
    let _unused = root.var_copy("unused", &noise(8, &[50]));
    let buffer = noise(9, &[1001]).to_device(device()).narrow(0, 1, 1000);
    let misaligned = root.var("misaligned", &[1000], tch::nn::Init::Const(0.0));
    let _ = frozen.set_requires_grad(false);
    // The variable lies 4 bytes behind an aligned address.
    misaligned.shallow_clone().set_data(&buffer);
    assert_eq!(misaligned.data_ptr().addr() % 16, 4);
    let all = Products(vec![wide, columns, misaligned]);
    let (model, mut opt) =
        Amp::<tch_amp::O0>::builder().build((store, all), Adam::new(1e-2)).unwrap();
    for n in 0..3 {
        // The gradient of a sum is one element that stands for all.
        let extra = model.inner().0[0].sum(Kind::Float) + model.inner().0[1].tr().sum(Kind::Float);
        let loss = model.forward(&noise(300 + n, &[64 * 33])) * 0.5 + extra;
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    }
    println!("layouts {:?}", common::snapshot(model.variables()));
}

/// Prints the digest of more tensors than one launch takes.
fn many() {
    let sizes: Vec<i64> = (0..4100).map(|n| n % 5).collect();
    let builder = Amp::<O2<bf16>>::builder();
    let (model, mut opt) = builder.build(products(10, &sizes), AdamW::new(1e-2)).unwrap();
    for n in 0..2 {
        let loss = model.forward(&noise(400 + n, &[4]));
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    }
    println!("many {:?}", common::snapshot(model.variables()));
}

/// Prints the digest of weights that are rounded stochastically.
fn stochastic() {
    let builder = Amp::<O3<bf16>>::builder().rounding(Rounding::Stochastic { seed: 5 });
    let (model, mut opt) = builder.build(products(11, &SIZES), Adam::new(1e-3)).unwrap();
    for n in 0..3 {
        let loss = model.forward(&noise(500 + n, &[SIZES[5]]));
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    }
    println!("stochastic {:?}", common::snapshot(model.variables()));
}

#[test]
#[ignore = "run by other tests in a process of its own"]
fn trains() {
    println!("\nkernels {}", tch_amp::kernels(device()).unwrap());
    for level in AnyLevel::ALL {
        with_level!(level, L => {
            train::<L>(&format!("Sgd {level}"), Sgd::new(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
            train::<L>(&format!("plain Sgd {level}"), Sgd::new(0.1));
            train::<L>(&format!("Adam {level}"), Adam::new(1e-2).weight_decay(0.1));
            train::<L>(&format!("AdamW {level}"), AdamW::new(1e-2));
            train::<L>(&format!("Adagrad {level}"), Adagrad::new(1e-2));
            norms::<L>(level);
        });
    }
    overflows();
    layouts();
    many();
    stochastic();
}

#[test]
#[ignore = "run by other tests in a process of its own"]
fn takes_two_steps() {
    let builder = Amp::<O2<bf16>>::builder();
    let (model, mut opt) = builder.build(products(12, &SIZES), AdamW::new(1e-2)).unwrap();
    println!("\nkernels {}", tch_amp::kernels(Device::Cpu).unwrap());
    for n in 0..2 {
        let loss = model.forward(&noise(600 + n, &[SIZES[5]]));
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    }
}

/// Takes one step with the optimizer that `TCH_AMP_TEST_OPTIMIZER` names.
#[test]
#[ignore = "run by other tests in a process of its own"]
fn takes_one_step() {
    fn step(optimizer: impl Optimizer) {
        let builder = Amp::<O2<bf16>>::builder();
        let (model, mut opt) = builder.build(products(13, &SIZES), optimizer).unwrap();
        let loss = model.forward(&noise(700, &[SIZES[5]]));
        assert!(opt.backward_step(&loss).unwrap().outcome().is_applied());
    }
    match std::env::var("TCH_AMP_TEST_OPTIMIZER").unwrap().as_str() {
        "Sgd" => step(Sgd::new(0.1)),
        "Adagrad" => step(Adagrad::new(1e-2)),
        "Lamb" => step(Lamb::new(1e-2)),
        name => panic!("{name}"),
    }
}

#[test]
#[ignore = "run by other tests in a process of its own"]
fn tells_why_not() {
    println!();
    for device in [Device::Cuda(0), Device::Cuda(7), Device::Mps] {
        println!("{device:?}: {}", tch_amp::kernels(device).unwrap_err());
    }
    println!("Cpu: {}", tch_amp::kernels(Device::Cpu).unwrap());
}

/// A process that runs one of the tests above, without a cache of kernels.
fn process(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env("TCH_AMP_KERNEL_CACHE", "")
        .env_remove("TCH_AMP_CUDA_DRIVER")
        .env_remove("TCH_AMP_TEST_DEVICE");
    command
}

fn lines(command: &mut Command) -> Vec<String> {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap().lines().map(str::to_owned).collect()
}

fn with_word<'l>(lines: &'l [String], word: &str) -> Vec<&'l str> {
    let mut lines: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix(word)).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn training_is_that_of_the_cpu() {
    let cpu = lines(&mut process("trains"));
    let (variable, value) = match device() {
        Device::Cpu => ("TCH_AMP_CUDA_DRIVER", DRIVER),
        _ => ("TCH_AMP_TEST_DEVICE", "cuda"),
    };
    let gpu = lines(process("trains").env(variable, value));
    assert!(with_word(&gpu, "kernels sm_")[0].contains("compiled by"), "{:?}", gpu[0]);
    assert!(with_word(&cpu, "kernels sm").is_empty(), "{:?}", cpu[0]);
    for what in ["bits ", "outcome ", "layouts ", "many ", "stochastic "] {
        let (cpu, gpu) = (with_word(&cpu, what), with_word(&gpu, what));
        assert!(!cpu.is_empty(), "{what}");
        assert_eq!(cpu, gpu);
    }
    let (cpu, gpu) = (with_word(&cpu, "norm "), with_word(&gpu, "norm "));
    assert_eq!(cpu.len(), 3 * AnyLevel::ALL.len());
    for (cpu, gpu) in cpu.iter().zip(gpu) {
        let numbers = |line: &str| -> Vec<f64> {
            line.split(' ').skip(1).map(|number| number.parse().unwrap()).collect()
        };
        for (cpu, gpu) in numbers(cpu).iter().zip(numbers(gpu)) {
            assert!((cpu - gpu).abs() <= 1e-6 * cpu, "{cpu} and {gpu}");
        }
    }
}

/// The names of the kernels that a process launches.
fn launches(process: &mut Command) -> Vec<String> {
    let folder = tempdir().unwrap();
    let list = folder.path().join("launches");
    lines(process.env("TCH_AMP_CUDA_DRIVER", DRIVER).env("TCH_AMP_EMULATED_LAUNCHES", &list));
    let launches = fs::read_to_string(&list).unwrap();
    launches.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn a_step_is_two_launches() {
    let step = ["check_bf16", "adam_bf16_master_bf16"];
    assert_eq!(launches(&mut process("takes_two_steps")), [step, step].concat());
}

#[test]
fn every_optimizer_has_kernels() {
    let lamb = [
        "check_bf16",
        "lamb_grad_norm",
        "lamb_moments_bf16_f32",
        "lamb_norms",
        "lamb_step_master_bf16",
    ];
    let updates: [(&str, &[&str]); 3] = [
        ("Sgd", &["sgd_bf16_master_bf16"]),
        ("Adagrad", &["adagrad_bf16_master_bf16"]),
        ("Lamb", &lamb),
    ];
    for (optimizer, update) in updates {
        let mut process = process("takes_one_step");
        process.env("TCH_AMP_TEST_OPTIMIZER", optimizer);
        assert_eq!(launches(&mut process), [&["check_bf16"], update].concat(), "{optimizer}");
    }
}

#[test]
fn what_is_missing_is_told() {
    let reasons = |driver: &str, version: &str| {
        lines(
            process("tells_why_not")
                .env("TCH_AMP_CUDA_DRIVER", driver)
                .env("TCH_AMP_EMULATED_CUDA", version)
                .env("TCH_AMP_CPU", "baseline"),
        )
    };
    let no_cuda = "libtorch has no CUDA here: its `libtorch_cuda` could not be loaded";
    let other = "there are kernels for the CPU and for CUDA devices only";
    let found = reasons(DRIVER, "13000");
    assert!(found.contains(&format!("Cuda(0): {no_cuda}")), "{found:#?}");
    let unknown = "Cuda(7): NVIDIA's driver: cuDeviceGet: invalid device ordinal (error 101)";
    assert!(found.contains(&unknown.to_owned()), "{found:#?}");
    assert!(found.contains(&format!("Mps: {other}")), "{found:#?}");
    assert!(found.contains(&"Cpu: sm_90, compiled by the driver".to_owned()), "{found:#?}");

    let found = reasons(DRIVER, "12000");
    let old = "NVIDIA's driver is made for CUDA 12.0: the kernels need 12.1 or later";
    assert!(found.contains(&format!("Cuda(0): {old}")), "{found:#?}");
    assert!(found.contains(&"Cpu: baseline".to_owned()), "{found:#?}");

    let found = reasons("/no/such/driver.so", "13000");
    let line = found.iter().find(|line| line.starts_with("Cuda(0): ")).unwrap();
    assert!(line.contains("NVIDIA's driver could not be loaded: "), "{line}");
    assert!(line.contains("/no/such/driver.so"), "{line}");
    assert!(found.contains(&"Cpu: baseline".to_owned()), "{found:#?}");
}

/// The entries of a cache, with what tells whether they were written again.
fn entries(cache: &Path) -> BTreeMap<String, (std::time::SystemTime, Vec<u8>)> {
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, (path.metadata().unwrap().modified().unwrap(), fs::read(&path).unwrap()))
    };
    fs::read_dir(cache).unwrap().map(entry).collect()
}

/// Needs the folder of NVRTC's library in `TCH_AMP_NVRTC`, as `cargo xtask test` gives it.
#[test]
fn kernels_are_compiled_once() {
    let Some(nvrtc) = std::env::var_os("TCH_AMP_NVRTC") else {
        eprintln!("skipped: NVRTC is not here; `cargo xtask test` fetches it");
        return;
    };
    let folder = tempdir().unwrap();
    let cache = folder.path().join("kernels");
    let run = || {
        let mut process = process("takes_two_steps");
        let process = process
            .env("TCH_AMP_CUDA_DRIVER", DRIVER)
            .env("TCH_AMP_KERNEL_CACHE", &cache)
            .env("LD_LIBRARY_PATH", &nvrtc);
        let lines = lines(process);
        assert_eq!(with_word(&lines, "kernels "), ["sm_90, compiled by NVRTC 13.0"]);
    };
    run();
    let first = entries(&cache);
    let names: Vec<_> = first.keys().map(String::as_str).collect();
    assert_eq!(names, ["adam.cu-sm_90.cubin", "gradients.cu-sm_90.cubin"]);

    run();
    assert!(entries(&cache) == first, "entries were written again");

    let adam = cache.join("adam.cu-sm_90.cubin");
    let mut damaged = first["adam.cu-sm_90.cubin"].1.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&adam, &damaged).unwrap();
    run();
    assert!(fs::read(&adam).unwrap() == first["adam.cu-sm_90.cubin"].1, "the entry stays damaged");
}
