//! Compiled kernels, kept on disk for the next process.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
};

/// Names the folder to use. Empty switches the cache off.
const VARIABLE: &str = "TCH_AMP_KERNEL_CACHE";
const MAGIC: &[u8] = b"tch-amp kernels 1\n";

/// A folder of compiled kernels.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The user's cache; `None` where there is no place for it.
    pub(super) fn of_user() -> Option<Self> {
        if let Some(folder) = env::var_os(VARIABLE) {
            return (!folder.is_empty()).then(|| Self::at(folder));
        }
        let local = if cfg!(windows) { env::var_os("LOCALAPPDATA") } else { None };
        let named = local.or_else(|| env::var_os("XDG_CACHE_HOME")).filter(|name| !name.is_empty());
        let cache = named.map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cache")))?;
        Some(Self::at(cache.join("tch-amp").join("kernels")))
    }

    pub(super) fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.cubin"))
    }

    /// What was compiled from `key`: all of the source, the options and the compiler's version.
    pub(super) fn get(&self, name: &str, key: &str) -> Option<Vec<u8>> {
        entry(&fs::read(self.path(name)).ok()?, key).map(<[u8]>::to_vec)
    }

    /// Keeps what was compiled, if that is possible: without it the next process compiles again.
    pub(super) fn put(&self, name: &str, key: &str, image: &[u8]) {
        if let Err(error) = self.write(&self.path(name), key, image) {
            tracing::debug!(
                target: "tch_amp", "compiled kernels cannot be kept in {}: {error}",
                self.folder.display()
            );
        }
    }

    /// Readers see all of the entry or nothing.
    fn write(&self, path: &Path, key: &str, image: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(MAGIC)?;
        for part in [key.as_bytes(), image] {
            file.write_all(&(part.len() as u64).to_le_bytes())?;
            file.write_all(&crc32fast::hash(part).to_le_bytes())?;
            file.write_all(part)?;
        }
        file.persist(path)?;
        Ok(())
    }
}

/// The image in an entry that was made from `key`, unless the entry is damaged.
fn entry<'f>(file: &'f [u8], key: &str) -> Option<&'f [u8]> {
    let rest = file.strip_prefix(MAGIC)?;
    let (found, rest) = part(rest)?;
    let (image, rest) = part(rest)?;
    (found == key.as_bytes() && rest.is_empty()).then_some(image)
}

fn part(file: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = file.split_first_chunk()?;
    let (checksum, rest) = rest.split_first_chunk()?;
    let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
    let (part, rest) = rest.split_at_checked(len)?;
    (crc32fast::hash(part) == u32::from_le_bytes(*checksum)).then_some((part, rest))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_by_all_of_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("new"));
        assert_eq!(cache.get("a", "key"), None);
        cache.put("a", "key", b"image");
        assert_eq!(cache.get("a", "key").as_deref(), Some(b"image".as_slice()));
        assert_eq!(cache.get("a", "other key"), None);
        assert_eq!(cache.get("b", "key"), None);
        cache.put("a", "other key", b"");
        assert_eq!(cache.get("a", "other key").as_deref(), Some(b"".as_slice()));
        assert_eq!(cache.get("a", "key"), None);
    }

    #[test]
    fn a_damaged_entry_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        cache.put("a", "key", b"image");
        let whole = fs::read(cache.path("a")).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert_eq!(entry(&damaged, "key"), None, "byte {at}");
            assert_eq!(entry(&whole[..at], "key"), None, "cut at {at}");
        }
        assert_eq!(entry(&[&whole[..], b"x"].concat(), "key"), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = Cache::at(&file);
        cache.put("a", "key", b"image");
        assert_eq!(cache.get("a", "key"), None);
    }
}
