//! The runs as pictures: loss curves, and accuracy by epoch.

use std::{
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use plotters::{
    coord::Shift,
    prelude::*,
    style::{FontStyle, register_font},
};

use crate::{report::REQUIRED, train::Run};

const SIZE: (u32, u32) = (1000, 620);
const FONT: &str = "sans-serif";

/// Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
const COLORS: [RGBColor; 4] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
];

type Result<T> = std::result::Result<T, PlotError>;

/// Writes both pictures into a folder, which is made if need be, and returns their names.
pub fn write(runs: &[Run], folder: &Path) -> Result<[PathBuf; 2]> {
    fs::create_dir_all(folder)
        .map_err(|source| PlotError::Folder { folder: folder.to_owned(), source })?;
    for (style, font) in
        [(FontStyle::Normal, notosans::REGULAR_TTF), (FontStyle::Bold, notosans::BOLD_TTF)]
    {
        register_font(FONT, style, font).map_err(|_| PlotError::Font)?;
    }
    let files = ["loss_curves.png", "accuracy.png"].map(|name| folder.join(name));
    let drawn = |file: &PathBuf, drawn: DrawResult| {
        drawn.map_err(|error| PlotError::Draw { file: file.clone(), reason: error.to_string() })
    };
    drawn(&files[0], loss_curves(runs, &files[0]))?;
    drawn(&files[1], accuracy(runs, &files[1]))?;
    Ok(files)
}

type Backend<'a> = BitMapBackend<'a>;
type DrawError<'a> = DrawingAreaErrorKind<<Backend<'a> as DrawingBackend>::ErrorType>;
