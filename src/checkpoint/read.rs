//! Reads a safetensors file tensor by tensor.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use crc32fast::Hasher;
use safetensors::tensor::TensorInfo;
use tch::{Device, Kind, TchError, Tensor};

use super::{
    LoadError,
    layout::{self, CHECKSUMS, DESCRIPTION, MAX_HEADER, ReadHeader, Strings},
    matching::{Found, Target},
    progress::Meter,
};
use crate::libtorch;

/// How much is read at once.
const CHUNK: usize = 1 << 18;

/// An open safetensors file whose header makes sense.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    file: File,
    /// Where the first tensor begins.
    data: u64,
    header_sum: u32,
    /// The tensors in the order of the file, checksums excepted.
    tensors: Vec<Stored>,
    checksums: Option<TensorInfo>,
    strings: Strings,
    /// Where tensors wait that cannot be read in place.
    staging: Tensor,
}

/// A tensor of a file.
#[derive(Debug)]
struct Stored {
    name: String,
    info: TensorInfo,
}

impl Stored {
    fn shape(&self) -> Vec<i64> {
        self.info.shape.iter().map(|&size| size as i64).collect()
    }

    fn bytes(&self) -> usize {
        self.info.data_offsets.1 - self.info.data_offsets.0
    }
}

impl Source {
    /// Opens a file and checks that its length is what its header says, and that the header is
    /// whole.
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Io { path: path.to_owned(), source };
        let malformed = |problem| LoadError::Header { path: path.to_owned(), problem };
        let mut file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        let mut length = [0; 8];
        if found < 8 {
            return Err(malformed(format!("it has {found} bytes")));
        }
        file.read_exact(&mut length).map_err(failed)?;
        let header_length = u64::from_le_bytes(length);
        if header_length > MAX_HEADER as u64 {
            return Err(malformed(format!("the header would have {header_length} bytes")));
        }
        if header_length > found - 8 {
            let expected = 8 + header_length;
            return Err(LoadError::Length { path: path.to_owned(), found, expected });
        }
        let mut json = vec![0; header_length as usize];
        file.read_exact(&mut json).map_err(failed)?;
        let header: ReadHeader =
            serde_json::from_slice(&json).map_err(|error| malformed(error.to_string()))?;
        let data = 8 + header_length;
        let expected = data.saturating_add(header.data_len() as u64);
        if found != expected {
            return Err(LoadError::Length { path: path.to_owned(), found, expected });
        }
        let stored = |name: String| Some(Stored { info: header.info(&name)?.clone(), name });
        let mut tensors: Vec<_> = header.offset_keys().into_iter().filter_map(stored).collect();
        let last = tensors.pop_if(|last| last.name == CHECKSUMS);
        let mut hasher = Hasher::new();
        hasher.update(&length);
        hasher.update(&json);
        let source = Self {
            path: path.to_owned(),
            file,
            data,
            header_sum: hasher.finalize(),
            tensors,
            checksums: last.map(|stored| stored.info),
            strings: header.metadata().clone().unwrap_or_default(),
            staging: Tensor::new(),
        };
        Ok(source)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors in the order of the file.
    pub(super) fn found(&self) -> Vec<Found> {
        let found = |stored: &Stored| Found {
            name: stored.name.clone(),
            dtype: stored.info.dtype.to_string(),
            kind: layout::kind(stored.info.dtype),
            shape: stored.shape(),
        };
        self.tensors.iter().map(found).collect()
    }

    /// What the file says of itself, if it is a checkpoint.
    pub(super) fn description(&self) -> Option<&str> {
        self.strings.get(DESCRIPTION).map(String::as_str)
    }

    /// The bytes that checking all tensors and filling some of them read.
    pub(super) fn bytes_to_read(&self, indices: impl Iterator<Item = usize>) -> u64 {
        let filled: usize = indices.map(|index| self.tensors[index].bytes()).sum();
        let checked: usize = match self.checksums {
            Some(_) => self.tensors.iter().map(Stored::bytes).sum(),
            None => 0,
        };
        (checked + filled) as u64
    }

    /// Checks the header against its checksum. A file without checksums is of another origin.
    pub(super) fn verify_header(&mut self) -> Result<(), LoadError> {
        let Some(sums) = self.sums()? else { return Ok(()) };
        match sums[0] == self.header_sum {
            true => Ok(()),
            false => Err(self.damaged("the header".to_owned())),
        }
    }

    /// Checks all tensors against their checksums.
    pub(super) fn verify_tensors(&mut self, meter: &mut Meter<'_>) -> Result<(), LoadError> {
        let Some(sums) = self.sums()? else { return Ok(()) };
        let mut chunk = vec![0; CHUNK];
        self.seek(0)?;
        for (index, sum) in sums[1..].iter().enumerate() {
            let mut left = self.tensors[index].bytes();
            let mut hasher = Hasher::new();
            while left > 0 {
                let part = &mut chunk[..left.min(CHUNK)];
                self.file.read_exact(part).map_err(|source| self.failed(source))?;
                hasher.update(part);
                meter.add(part.len());
                left -= part.len();
            }
            if hasher.finalize() != *sum {
                return Err(self.damaged(format!("`{}`", self.tensors[index].name)));
            }
        }
        Ok(())
    }

    /// The checksums of the header and of each tensor.
    fn sums(&mut self) -> Result<Option<Vec<u32>>, LoadError> {
        let Some(info) = self.checksums.clone() else {
            return match self.description() {
                Some(_) => Err(self.damaged("the header".to_owned())),
                None => Ok(None),
            };
        };
        let (start, end) = info.data_offsets;
        let mut table = vec![0; end - start];
        self.read(start, &mut table)?;
        let (table, own) = table.split_last_chunk().unwrap_or((&[], &[0; 4]));
        let (sums, rest) = table.as_chunks();
        let whole = crc32fast::hash(table) == u32::from_le_bytes(*own);
        if !whole || !rest.is_empty() || sums.len() != self.tensors.len() + 1 {
            return Err(self.damaged("the checksums".to_owned()));
        }
        Ok(Some(sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect()))
    }

    /// The bytes of a tensor.
    pub(super) fn bytes_of(&mut self, name: &str) -> Result<Option<Vec<u8>>, LoadError> {
        let Some(stored) = self.tensors.iter().find(|stored| stored.name == name) else {
            return Ok(None);
        };
        let (start, mut bytes) = (stored.info.data_offsets.0, vec![0; stored.bytes()]);
        self.read(start, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// Makes room for the largest of the tensors that cannot be read in place.
    pub(super) fn stage(&mut self, targets: &mut [(usize, Target)]) -> Result<(), TchError> {
        let detour = |(index, target): &mut (usize, Target)| {
            let stored = &self.tensors[*index];
            let in_place = layout::kind(stored.info.dtype) == target.tensor.f_kind().ok()
                && libtorch::bytes_mut(&mut target.tensor).is_some();
            (!in_place).then(|| stored.bytes())
        };
        let bytes = targets.iter_mut().filter_map(detour).max().unwrap_or_default();
        self.staging = Tensor::f_empty([bytes as i64], (Kind::Uint8, Device::Cpu))?;
        Ok(())
    }

    /// Gives a tensor of the same shape the values of the `index`-th in the file.
    pub(super) fn fill(
        &mut self,
        index: usize,
        target: &mut Tensor,
        meter: &mut Meter<'_>,
    ) -> Result<(), LoadError> {
        let stored = &self.tensors[index];
        let (start, bytes, shape) = (stored.info.data_offsets.0, stored.bytes(), stored.shape());
        let kind = layout::kind(stored.info.dtype).ok_or_else(|| unreadable(&stored.name))?;
        if target.f_kind()? == kind
            && let Some(memory) = libtorch::bytes_mut(target)
        {
            return self.read_measured(start, memory, meter);
        }
        let mut staged = self.staging.f_narrow(0, 0, bytes as i64)?;
        let memory = libtorch::bytes_mut(&mut staged).ok_or_else(|| unreadable(&stored.name))?;
        self.read_measured(start, memory, meter)?;
        // Any byte but 0 is true.
        let view = if kind == Kind::Bool { Kind::Uint8 } else { kind };
        target.f_copy_(&staged.f_view_dtype(view)?.f_view(shape.as_slice())?)?;
        Ok(())
    }

    fn read_measured(
        &mut self,
        start: usize,
        into: &mut [u8],
        meter: &mut Meter<'_>,
    ) -> Result<(), LoadError> {
        self.seek(start)?;
        for part in into.chunks_mut(CHUNK) {
            self.file.read_exact(part).map_err(|source| self.failed(source))?;
            meter.add(part.len());
        }
        Ok(())
    }

    fn read(&mut self, start: usize, into: &mut [u8]) -> Result<(), LoadError> {
        self.seek(start)?;
        self.file.read_exact(into).map_err(|source| self.failed(source))
    }

    fn seek(&mut self, offset: usize) -> Result<(), LoadError> {
        let position = SeekFrom::Start(self.data + offset as u64);
        self.file.seek(position).map(|_| ()).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> LoadError {
        LoadError::Io { path: self.path.clone(), source }
    }

    fn damaged(&self, part: String) -> LoadError {
        LoadError::Damaged { path: self.path.clone(), part }
    }
}

fn unreadable(name: &str) -> TchError {
    TchError::Kind(format!("`{name}` is of a type that libtorch does not have"))
}
