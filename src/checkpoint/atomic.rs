//! Replaces a file as a whole or not at all.

use std::{
    fs::{self, File, TryLockError},
    io::{
        self,
        ErrorKind::{InvalidInput, Unsupported},
        Write,
    },
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::mpsc::{self, SyncSender},
    thread,
};

use tempfile::Builder;

/// The end of the names of files that are being written.
const ENDING: &str = ".tmp";
/// How much is written before it is brought to the disk, while more is written.
const PORTION: usize = 1 << 24;

/// Has `write` write a new file in the same folder, makes sure that it is on the disk, and renames
/// it to `path`. Whatever fails, the old file stays as it is.
///
/// Files that killed processes left behind for the same path are removed first.
pub(super) fn replace<E>(
    path: &Path,
    failed: impl Fn(io::Error) -> E,
    write: impl FnOnce(&mut Output<'_>) -> Result<(), E>,
) -> Result<(), E> {
    // A link stays, and what it leads to is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (folder, prefix) = place(&path).map_err(&failed)?;
    remove_leftovers(&folder, &prefix);
    let temporary = open(&folder, &prefix).map_err(&failed)?;
    // Where there are no locks, leftovers stay.
    _ = temporary.as_file().lock();
    write_portions(temporary.as_file(), &failed, write)?;
    temporary.as_file().sync_all().map_err(&failed)?;
    temporary.persist(&path).map_err(|error| failed(error.error))?;
    sync_folder(&folder).map_err(failed)
}

/// A new file of which portions are brought to the disk while it is written.
#[derive(Debug)]
pub(super) struct Output<'f> {
    file: &'f File,
    /// Bytes since the last portion.
    written: usize,
    portions: SyncSender<()>,
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.written += written;
        // While the disk is busy, the portion becomes larger.
        if self.written >= PORTION && self.portions.try_send(()).is_ok() {
            self.written = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has `write` write to a file that another thread brings to the disk at the same time.
fn write_portions<E>(
    file: &File,
    failed: impl Fn(io::Error) -> E,
    write: impl FnOnce(&mut Output<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let (portions, to_sync) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let sync = move || to_sync.into_iter().try_for_each(|()| file.sync_data());
        let syncing = thread::Builder::new().spawn_scoped(scope, sync).map_err(&failed)?;
        write(&mut Output { file, written: 0, portions })?;
        syncing.join().unwrap_or_else(|panic| resume_unwind(panic)).map_err(failed)
    })
}

/// Makes a folder, and makes sure that it is on the disk.
pub(super) fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => sync_folder(Path::new(".")),
    }
}

/// The folder of a file, and what the names of its temporary files begin with.
fn place(path: &Path) -> io::Result<(PathBuf, String)> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(InvalidInput, "the path names no file"));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).to_owned();
    Ok((folder, format!(".{}.", name.display())))
}

fn open(folder: &Path, prefix: &str) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(prefix).suffix(ENDING);
    // The permissions of any new file, not those of a secret.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// Removes the files of writers that no longer live: they hold no lock.
pub(super) fn remove_leftovers(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|n| n.starts_with(prefix) && n.ends_with(ENDING));
        if ours && File::open(entry.path()).is_ok_and(|file| is_left(&file)) {
            _ = fs::remove_file(entry.path());
        }
    }
}

fn is_left(file: &File) -> bool {
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock | TryLockError::Error(_)))
}

/// Makes sure that a new name is on the disk.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some file systems do this by themselves.
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported) => Ok(()),
        synced => synced,
    }
}

/// Elsewhere, a folder cannot be opened as a file.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
