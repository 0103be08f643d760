//! MNIST from IDX files: <http://yann.lecun.com/exdb/mnist/>.

use std::{
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;
use tch::{Device, Kind, TchError, Tensor};

const TRAIN: [&str; 2] = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
const TEST: [&str; 2] = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];

const BUNDLED_IMAGES: &[u8] = include_bytes!("../data/t10k-images-idx3-ubyte.gz");
const BUNDLED_LABELS: &[u8] = include_bytes!("../data/t10k-labels-idx1-ubyte.gz");

/// Mean and standard deviation of MNIST's pixels, scaled to [0, 1].
const MEAN: f64 = 0.1307;
const DEVIATION: f64 = 0.3081;

/// Of a set without training files, each fifth image tests.
const TEST_EVERY: usize = 5;

/// Images to train on, and others to test with.
#[derive(Debug)]
pub struct Mnist {
    pub train: Digits,
    pub test: Digits,
}

/// Images with what they show.
#[derive(Debug)]
pub struct Digits {
    /// `[n, 1, 28, 28]`, FP32, normalised.
    pub images: Tensor,
    /// `[n]`, 0 to 9.
    pub labels: Tensor,
}

impl Mnist {
    /// The 10,000 images next to the example's source.
    pub fn bundled() -> Result<Self, DataError> {
        let [images, labels] = TEST.map(|name| PathBuf::from(format!("{name}.gz")));
        let images = Idx::parse(&inflate(BUNDLED_IMAGES, &images)?, &images)?;
        let labels = Idx::parse(&inflate(BUNDLED_LABELS, &labels)?, &labels)?;
        Digits::new(images, labels)?.split()
    }

    /// The set in a folder: four files, or the two of the test set.
    pub fn from_folder(folder: &Path) -> Result<Self, DataError> {
        if !folder.is_dir() {
            return Err(DataError::NoFolder { folder: folder.to_owned() });
        }
        let train = TRAIN.map(|name| find(folder, name));
        let test = Digits::read(TEST.map(|name| find(folder, name)))?;
        match train.iter().any(Result::is_ok) {
            true => Ok(Self { train: Digits::read(train)?, test }),
            false => test.split(),
        }
    }

    /// The set in the memory of a device.
    pub fn to_device(&self, device: Device) -> Self {
        Self { train: self.train.to_device(device), test: self.test.to_device(device) }
    }
}

impl fmt::Display for Mnist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (train, test) = (self.train.len(), self.test.len());
        write!(f, "MNIST: {train} images to train on, {test} to test with")
    }
}

impl Digits {
    pub fn len(&self) -> i64 {
        self.labels.numel() as i64
    }

    /// The first `n`, or all if there are less.
    pub fn first(&self, n: i64) -> Self {
        let narrow = |tensor: &Tensor| tensor.narrow(0, 0, n.min(self.len()));
        Self { images: narrow(&self.images), labels: narrow(&self.labels) }
    }

    fn to_device(&self, device: Device) -> Self {
        Self { images: self.images.to_device(device), labels: self.labels.to_device(device) }
    }

    fn read([images, labels]: [Result<PathBuf, DataError>; 2]) -> Result<Self, DataError> {
        Self::new(Idx::read(&images?)?, Idx::read(&labels?)?)
    }

    fn new(images: Idx, labels: Idx) -> Result<Self, DataError> {
        let (shape, file) = (&images.shape, &images.file);
        let [n, height, width] = shape[..] else {
            return Err(images.malformed("it does not hold images"));
        };
        if labels.shape != [n] {
            let reason = format!("it does not hold one label for each image of {}", file.display());
            return Err(labels.malformed(&reason));
        }
        let pixels = Tensor::f_from_data_size(&images.bytes, &[n, 1, height, width], Kind::Uint8)?;
        let scaled = pixels.f_to_kind(Kind::Float)?.f_div_scalar(255.0)?;
        let normalised = scaled.f_sub_scalar(MEAN)?.f_div_scalar(DEVIATION)?;
        let labels = Tensor::f_from_data_size(&labels.bytes, &[n], Kind::Uint8)?;
        Ok(Self { images: normalised, labels: labels.f_to_kind(Kind::Int64)? })
    }

    /// Sets each fifth image aside for testing.
    ///
    /// MNIST's test set is ordered: its second half was written by other people than its first.
    fn split(&self) -> Result<Mnist, DataError> {
        let (test, train): (Vec<i64>, Vec<i64>) =
            (0..self.len()).partition(|index| index % TEST_EVERY as i64 == 0);
        let select = |indices: &[i64]| -> Result<Self, TchError> {
            let indices = Tensor::f_from_slice(indices)?;
            let images = self.images.f_index_select(0, &indices)?;
            let labels = self.labels.f_index_select(0, &indices)?;
            Ok(Self { images, labels })
        };
        Ok(Mnist { train: select(&train)?, test: select(&test)? })
    }
}

/// The file by that name, plain or compressed.
fn find(folder: &Path, name: &str) -> Result<PathBuf, DataError> {
    let candidates = [folder.join(name), folder.join(format!("{name}.gz"))];
    let found = candidates.into_iter().find(|file| file.is_file());
    found.ok_or_else(|| DataError::NoFile { file: folder.join(name) })
}

fn inflate(compressed: &[u8], file: &Path) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let read = GzDecoder::new(compressed).read_to_end(&mut bytes);
    match read {
        Ok(_) => Ok(bytes),
        Err(source) => Err(DataError::Read { file: file.to_owned(), source }),
    }
}

/// An array of bytes with the file it comes from.
#[derive(Debug)]
struct Idx {
    file: PathBuf,
    shape: Vec<i64>,
    bytes: Vec<u8>,
}

impl Idx {
    fn read(file: &Path) -> Result<Self, DataError> {
        let bytes =
            fs::read(file).map_err(|source| DataError::Read { file: file.to_owned(), source })?;
        match bytes.starts_with(&[0x1f, 0x8b]) {
            true => Self::parse(&inflate(&bytes, file)?, file),
            false => Self::parse(&bytes, file),
        }
    }

    /// Two zeros, the element type (8 for bytes), the number of dimensions, the dimensions as
    /// big-endian integers, the elements.
    fn parse(bytes: &[u8], file: &Path) -> Result<Self, DataError> {
        let mut idx = Self { file: file.to_owned(), shape: Vec::new(), bytes: Vec::new() };
        let [0, 0, 8, dimensions, rest @ ..] = bytes else {
            return Err(idx.malformed("it is not an IDX file of bytes"));
        };
        let (sizes, _) = rest.as_chunks::<4>();
        let dimensions = usize::from(*dimensions);
        idx.shape = sizes.iter().take(dimensions).map(|&s| u32::from_be_bytes(s).into()).collect();
        idx.bytes = rest.get(4 * dimensions..).unwrap_or_default().to_vec();
        let elements = idx.shape.iter().copied().try_fold(1, i64::checked_mul);
        match idx.shape.len() == dimensions && elements == Some(idx.bytes.len() as i64) {
            true => Ok(idx),
            false => Err(idx.malformed("its size does not match its header")),
        }
    }

    fn malformed(&self, reason: &str) -> DataError {
        DataError::Malformed { file: self.file.clone(), reason: reason.to_owned() }
    }
}

/// Why there is no data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("there is no folder {}", folder.display())]
    NoFolder { folder: PathBuf },
    #[error("there is no file {}, and none with .gz at the end", file.display())]
    NoFile { file: PathBuf },
    #[error("cannot read {}: {source}", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("{}: {reason}", file.display())]
    Malformed { file: PathBuf, reason: String },
    #[error(transparent)]
    Torch(#[from] TchError),
}
