//! Writes a safetensors file tensor by tensor.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
};

use crc32fast::Hasher;
use safetensors::tensor::TensorInfo;
use tch::{Device, Kind, TchError, Tensor};

use super::{
    SaveError, atomic,
    layout::{self, CHECKSUMS, Header, MAX_HEADER},
    progress::Meter,
};
use crate::libtorch;

/// How much is hashed and written at once: it stays in the processor's cache in between.
const CHUNK: usize = 1 << 18;

/// A tensor that is to be written.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// The type in the file.
    pub(super) kind: Kind,
    pub(super) tensor: Tensor,
}

/// Writes tensors and metadata; with `checksums`, what tells whether they are whole.
pub(super) fn write(
    path: &Path,
    mut entries: Vec<Entry>,
    metadata: BTreeMap<&str, &str>,
    checksums: bool,
    meter: &mut Meter<'_>,
) -> Result<(), SaveError> {
    // Larger elements first, so that each is aligned.
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.kind.elt_size_in_bytes()));
    let failed = |source| SaveError::Io { path: path.to_owned(), source };
    let (header, data) = header(&entries, metadata, checksums, failed)?;
    meter.start((header.len() + data) as u64);
    atomic::replace(path, failed, |file| {
        let mut sums = Vec::with_capacity(entries.len() + 2);
        sums.push(copy(&header, file, meter).map_err(failed)?);
        for entry in &entries {
            let prepared = prepare(entry)?;
            let bytes = libtorch::bytes(&prepared).ok_or_else(|| not_readable(entry))?;
            sums.push(copy(bytes, file, meter).map_err(failed)?);
        }
        if checksums {
            let mut table: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
            table.extend(crc32fast::hash(&table).to_le_bytes());
            copy(&table, file, meter).map_err(failed)?;
        }
        Ok(())
    })
}

/// The file up to the first tensor, and the number of bytes behind it.
fn header(
    entries: &[Entry],
    metadata: BTreeMap<&str, &str>,
    checksums: bool,
    failed: impl FnOnce(io::Error) -> SaveError,
) -> Result<(Vec<u8>, usize), SaveError> {
    let mut tensors: BTreeMap<&str, _> = BTreeMap::new();
    let mut end = 0;
    let mut add = |name, dtype, shape: Vec<usize>, bytes| {
        let info = TensorInfo { dtype, shape, data_offsets: (end, end + bytes) };
        end += bytes;
        match tensors.insert(name, info) {
            Some(_) => Err(SaveError::Name { name: name.to_owned() }),
            None => Ok(()),
        }
    };
    for Entry { name, kind, tensor } in entries {
        let unknown = || SaveError::Kind { name: name.clone(), kind: *kind };
        let dtype = layout::dtype(*kind).ok_or_else(unknown)?;
        let shape = tensor.size().iter().map(|&size| size as usize).collect();
        add(name, dtype, shape, tensor.numel() * kind.elt_size_in_bytes())?;
    }
    if checksums {
        let bytes = 4 * (entries.len() + 2);
        add(CHECKSUMS, safetensors::Dtype::U8, vec![bytes], bytes)?;
    }
    let header = Header { metadata, tensors };
    let mut json = serde_json::to_vec(&header).map_err(|error| failed(error.into()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    if json.len() > MAX_HEADER {
        return Err(SaveError::Header { bytes: json.len() });
    }
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok((header, end))
}

/// The tensor in the CPU's memory, row-major and of the type that it has in the file.
fn prepare(entry: &Entry) -> Result<Tensor, TchError> {
    let Entry { kind, tensor, .. } = entry;
    tensor.f_detach()?.f_to_kind(*kind)?.f_to_device(Device::Cpu)?.f_contiguous()
}

fn not_readable(entry: &Entry) -> SaveError {
    SaveError::Kind { name: entry.name.clone(), kind: entry.kind }
}

/// Writes bytes and returns their CRC-32.
fn copy(bytes: &[u8], file: &mut impl Write, meter: &mut Meter<'_>) -> io::Result<u32> {
    let mut hasher = Hasher::new();
    for chunk in bytes.chunks(CHUNK) {
        hasher.update(chunk);
        file.write_all(chunk)?;
        meter.add(chunk.len());
    }
    Ok(hasher.finalize())
}
