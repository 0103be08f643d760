//! A residual net with batch norm, and the handwritten digits it learns.

use std::io::Read;

use flate2::read::GzDecoder;
use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, VarStore},
};

const IMAGES: &[u8] = include_bytes!("../../examples/data/t10k-images-idx3-ubyte.gz");
const LABELS: &[u8] = include_bytes!("../../examples/data/t10k-labels-idx1-ubyte.gz");
const SIDE: i64 = 28;

/// Two residual blocks; the second halves the image, so that its shortcut is a convolution.
#[derive(Debug)]
pub struct ResNet {
    stem: Normed,
    plain: Block,
    strided: Block,
    head: nn::Linear,
}

#[derive(Debug)]
struct Block {
    first: Normed,
    second: Normed,
    shortcut: Option<Normed>,
}

/// A convolution and its batch norm.
#[derive(Debug)]
struct Normed {
    conv: nn::Conv2D,
    norm: nn::BatchNorm,
}

impl ResNet {
    /// The net with the same weights each time.
    pub fn seeded() -> (VarStore, Self) {
        let store = VarStore::new(Device::Cpu);
        let root = store.root();
        let net = Self {
            stem: Normed::new(&root, "stem", [1, 8], 3, 2),
            plain: Block::new(&root, "plain", [8, 8], 1),
            strided: Block::new(&root, "strided", [8, 16], 2),
            head: nn::linear(&root / "head", 16, 10, Default::default()),
        };
        crate::common::fill(&store, 3);
        (store, net)
    }

    /// Whether a variable belongs to a batch norm.
    pub fn is_norm(name: &str) -> bool {
        name.starts_with("norm")
    }
}

impl ModuleT for ResNet {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let stem = self.stem.forward_t(xs, train).relu();
        let hidden = self.strided.forward_t(&self.plain.forward_t(&stem, train), train);
        hidden.adaptive_avg_pool2d([1, 1]).flatten(1, -1).apply(&self.head)
    }
}

impl Block {
    fn new(root: &nn::Path, name: &str, channels: [i64; 2], stride: i64) -> Self {
        let [_, out] = channels;
        let part = |part: &str| format!("{name}_{part}");
        Self {
            first: Normed::new(root, &part("first"), channels, 3, stride),
            second: Normed::new(root, &part("second"), [out, out], 3, 1),
            shortcut: (stride > 1)
                .then(|| Normed::new(root, &part("shortcut"), channels, 1, stride)),
        }
    }
}

impl ModuleT for Block {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let hidden = self.first.forward_t(xs, train).relu();
        let hidden = self.second.forward_t(&hidden, train);
        match &self.shortcut {
            Some(shortcut) => (hidden + shortcut.forward_t(xs, train)).relu(),
            None => (hidden + xs).relu(),
        }
    }
}

impl Normed {
    fn new(root: &nn::Path, name: &str, [from, to]: [i64; 2], kernel: i64, stride: i64) -> Self {
        let padding = kernel / 2;
        let conv = nn::ConvConfig { stride, padding, bias: false, ..Default::default() };
        let norm = nn::BatchNormConfig { ws_init: nn::Init::Const(1.0), ..Default::default() };
        Self {
            conv: nn::conv2d(root / format!("conv_{name}"), from, to, kernel, conv),
            norm: nn::batch_norm2d(root / format!("norm_{name}"), to, norm),
        }
    }
}

impl ModuleT for Normed {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        xs.apply(&self.conv).apply_t(&self.norm, train)
    }
}

/// The batches of all iterations: ten, again and again. Images are `[size, 1, 14, 14]`, half as
/// large as in the file, with values in [-1, 1].
pub fn batches(iterations: i64, size: i64) -> Vec<(Tensor, Tensor)> {
    let count = 10;
    let images = elements(IMAGES, 16, count * size * SIDE * SIDE).view([-1, size, 1, SIDE, SIDE]);
    let images = images.to_kind(Kind::Float) / 127.5 - 1.0;
    let half = |image: Tensor| image.avg_pool2d_default(2);
    let digits = elements(LABELS, 8, count * size).view([-1, size]).to_kind(Kind::Int64);
    (0..iterations).map(|n| (half(images.get(n % count)), digits.get(n % count))).collect()
}

/// The first elements of a compressed IDX file of bytes.
fn elements(file: &[u8], header: i64, count: i64) -> Tensor {
    let mut bytes = vec![0; (header + count) as usize];
    GzDecoder::new(file).read_exact(&mut bytes).unwrap();
    Tensor::from_slice(&bytes[header as usize..])
}
