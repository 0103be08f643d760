//! The runs as pictures: loss curves, and accuracy by epoch.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

use plotters::{
    coord::ranged1d::{AsRangedCoord, ValueFormatter},
    prelude::*,
    style::{FontStyle, register_font},
};

use crate::{report::REQUIRED, train::Run, watch::POINT};

const SIZE: (u32, u32) = (1000, 620);
/// The length of a line in the legend.
const KEY: i32 = 26;
const FONT: &str = "sans-serif";
const GRID: RGBColor = RGBColor(222, 222, 222);
const GREY: RGBColor = RGBColor(120, 120, 120);

/// The colour and the width of each run's line. The colours are Okabe and Ito's, which people with
/// any kind of colour vision can tell apart.
const STYLES: [(RGBColor, u32); 4] = [
    (RGBColor(0, 0, 0), 8),
    (RGBColor(230, 159, 0), 6),
    (RGBColor(86, 180, 233), 4),
    (RGBColor(213, 94, 0), 2),
];

/// Writes both pictures into a folder, which is made if need be, and returns their names.
pub fn write(runs: &[Run], folder: &Path) -> Result<[PathBuf; 2], PlotError> {
    fs::create_dir_all(folder)
        .map_err(|source| PlotError::Folder { folder: folder.to_owned(), source })?;
    let fonts = [(FontStyle::Normal, notosans::REGULAR_TTF), (FontStyle::Bold, notosans::BOLD_TTF)];
    for (style, font) in fonts {
        register_font(FONT, style, font).map_err(|_| PlotError::Font)?;
    }
    let draw = |name, draw: fn(&[Run], &Path) -> Drawn| {
        let file = folder.join(name);
        match draw(runs, &file) {
            Ok(()) => Ok(file),
            Err(reason) => Err(PlotError::Draw { file, reason }),
        }
    };
    Ok([draw("loss_curves.png", loss_curves)?, draw("accuracy.png", accuracy_by_epoch)?])
}

/// What drawing may fail with depends on the axes.
type Drawn = Result<(), Box<dyn Error>>;

fn loss_curves(runs: &[Run], file: &Path) -> Drawn {
    let curves: Vec<Curve> = runs.iter().map(|run| run.losses.clone()).collect();
    let losses = || curves.iter().flatten().map(|(_, loss)| *loss);
    let lowest = losses().fold(f64::INFINITY, f64::min);
    let highest = losses().fold(f64::NEG_INFINITY, f64::max);
    Picture {
        title: "Training loss by opt level",
        y_label: &format!("cross entropy, mean of {POINT} steps"),
        y_format: &|loss| format!("{loss}"),
        legend: SeriesLabelPosition::UpperRight,
        dots: 0,
        first_epoch: 0.0,
        threshold: None,
    }
    .draw(file, runs, &curves, (0.8 * lowest..1.25 * highest).log_scale())
}

fn accuracy_by_epoch(runs: &[Run], file: &Path) -> Drawn {
    let percent = |(epoch, accuracy): (usize, &f64)| (epoch as f64 + 1.0, 100.0 * accuracy);
    let curves: Vec<Curve> =
        runs.iter().map(|run| run.accuracies.iter().enumerate().map(percent).collect()).collect();
    let required = 100.0 * REQUIRED;
    let lowest = curves.iter().flatten().fold(required, |lowest, (_, y)| lowest.min(*y));
    Picture {
        title: "Test accuracy by opt level",
        y_label: "accuracy on the test images",
        y_format: &|percent| format!("{percent:.1} %"),
        legend: SeriesLabelPosition::LowerRight,
        dots: 5,
        // With one epoch only, its point is in the middle.
        first_epoch: if runs.iter().all(|run| run.accuracies.len() == 1) { 0.0 } else { 1.0 },
        threshold: Some(required),
    }
    .draw(file, runs, &curves, (lowest - 0.5).max(0.0)..100.0)
}

/// Points of (epochs trained, value).
type Curve = Vec<(f64, f64)>;

/// What the two pictures differ in.
struct Picture<'a> {
    title: &'a str,
    y_label: &'a str,
    y_format: &'a dyn Fn(&f64) -> String,
    legend: SeriesLabelPosition,
    /// The radius of the points.
    dots: u32,
    /// Where the x axis begins.
    first_epoch: f64,
    /// Where to draw a dashed line.
    threshold: Option<f64>,
}

impl Picture<'_> {
    fn draw<Y>(self, file: &Path, runs: &[Run], curves: &[Curve], y_axis: Y) -> Drawn
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let epochs = runs.iter().map(|run| run.accuracies.len()).max().unwrap_or_default();
        let x_axis = self.first_epoch..epochs as f64;
        let area = BitMapBackend::new(file, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, (FONT, 32, FontStyle::Bold).into_font())
            .margin(20)
            .x_label_area_size(60)
            .y_label_area_size(100)
            .build_cartesian_2d(x_axis.clone(), y_axis)?;
        chart
            .configure_mesh()
            .x_desc("epochs")
            .y_desc(self.y_label)
            .x_labels(epochs + 1)
            .x_label_formatter(&|epoch| format!("{epoch:.0}"))
            .y_label_formatter(self.y_format)
            .axis_desc_style((FONT, 22))
            .label_style((FONT, 19))
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .draw()?;
        if let Some(y) = self.threshold {
            let line = [(x_axis.start, y), (x_axis.end, y)];
            let key = |(x, y)| PathElement::new([(x, y), (x + KEY, y)], GREY);
            let name = format!("{y} % required");
            chart
                .draw_series(DashedLineSeries::new(line, 6, 5, GREY.into()))?
                .label(name)
                .legend(key);
        }
        // Where curves coincide, the earlier ones show as borders of the later ones.
        for ((run, curve), (color, width)) in runs.iter().zip(curves).zip(STYLES) {
            let line = LineSeries::new(curve.iter().copied(), color.stroke_width(width));
            let line = line.point_size(self.dots);
            let key = move |(x, y)| PathElement::new([(x, y), (x + KEY, y)], color.stroke_width(3));
            let name = format!("{} {}", run.level_name, run.dtype);
            chart.draw_series(line)?.label(name).legend(key);
        }
        chart
            .configure_series_labels()
            .position(self.legend)
            .margin(16)
            .legend_area_size(36)
            .label_font((FONT, 21))
            .background_style(WHITE.mix(0.85))
            .border_style(GREY)
            .draw()?;
        Ok(area.present()?)
    }
}

/// Why there are no pictures.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    #[error("cannot make the folder {}: {source}", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("the bundled font is damaged")]
    Font,
    #[error("cannot draw {}: {reason}", file.display())]
    Draw { file: PathBuf, reason: Box<dyn Error> },
}
