//! Training is the same in every bit, whatever instructions the CPU has and however many threads
//! there are.

mod common;

use std::process::Command;

use common::{bits, noise};
use tch::{
    Device, Kind, Tensor,
    nn::{Module, VarStore},
};
use tch_amp::{
    Amp, AnyLevel, OptLevel, Optimizer, Static,
    optim::{Adagrad, Adam, Lamb, NormType, NovoGrad, Sgd},
    with_level,
};

const INSTRUCTIONS: &str = "TCH_AMP_CPU";
const THREADS: &str = "INSTRUCTIONS_THREADS";

/// The sum of all products of inputs and weights: a weight's gradient is its input.
#[derive(Debug)]
struct Products(Vec<Tensor>);

impl Module for Products {
    fn forward(&self, xs: &Tensor) -> Tensor {
        let products = self.0.iter().zip(xs.unbind(0));
        let sums = products.map(|(w, x)| (w * x.narrow(0, 0, w.size()[0])).sum(Kind::Float));
        sums.sum()
    }
}

/// The digest of some steps at a level, with tensors of one and of several chunks.
fn train<L: OptLevel>(first: impl Optimizer, second: impl Optimizer) -> String {
    let sizes = [1, 7, 1000, 65_536, 200_001];
    let net = |seed| {
        let store = VarStore::new(Device::Cpu);
        let weight =
            |&n: &i64| store.root().var_copy(&format!("w{n}"), &noise(seed + n as u64, &[n]));
        let weights = sizes.iter().map(weight).collect();
        (store, Products(weights))
    };
    let builder = Amp::<L>::builder().loss_scale(Static::new(64.0));
    let ((a, b), (mut first, mut second)) =
        builder.build((net(1), net(2)), (first, second)).unwrap();
    let mut digest = String::new();
    for n in 0..3 {
        let xs = noise(100 + n, &[5, 200_001]);
        let mut step = first.begin();
        for _ in 0..=n % 2 {
            step.backward(&a.forward(&xs)).unwrap();
        }
        let mut step = step.unscale().unwrap();
        digest += &format!("{:x} ", step.clip_grad_norm(1.0).unwrap().value().to_bits());
        assert!(step.step().unwrap().is_applied());
        assert!(second.backward_step(&b.forward(&xs)).unwrap().outcome().is_applied());
    }
    let masters = first.master_params().chain(second.master_params());
    for tensor in masters.map(|(_, tensor)| tensor) {
        digest += &format!("{:?} ", bits(tensor));
    }
    digest
}

#[test]
#[ignore = "run by another test in a process of its own"]
fn digest() {
    if let Ok(threads) = std::env::var(THREADS) {
        tch::set_num_threads(threads.parse().unwrap());
        for level in AnyLevel::ALL {
            let digest = with_level!(level, L => {
                let sgd = Sgd::new(0.1).momentum(0.9);
                let element_wise = train::<L>(Adam::new(1e-2).weight_decay(0.1), sgd);
                let max = NovoGrad::new(1e-2).norm_type(NormType::Max);
                let lamb = train::<L>(Lamb::new(1e-2), max);
                element_wise + &lamb + &train::<L>(NovoGrad::new(1e-2), Adagrad::new(1e-2))
            });
            println!("digest of {level}: {digest}");
        }
    }
}

fn digests(instructions: &str, threads: u32) -> Vec<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "digest", "--ignored", "--nocapture", "--test-threads=1"])
        .env(INSTRUCTIONS, instructions)
        .env(THREADS, threads.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| line.contains("digest of")).map(str::to_owned).collect()
}

#[test]
fn neither_instructions_nor_threads_change_a_bit() {
    let expected = digests("baseline", 1);
    assert_eq!(expected.len(), AnyLevel::ALL.len());
    // What this CPU lacks falls back to what it has.
    for instructions in ["avx512", "avx2", "baseline"] {
        for threads in [1, 2, 3, 8] {
            let found = digests(instructions, threads);
            assert_eq!(found, expected, "{instructions}, {threads} threads");
        }
    }
}
