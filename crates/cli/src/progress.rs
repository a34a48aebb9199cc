//! Progress bars, on a terminal only.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `total` units, or a spinner if the total is unknown.
pub(crate) fn bar(what: &'static str, total: Option<u64>, is_bytes: bool) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
    }
    let bar = match total {
        Some(n) => ProgressBar::new(n),
        None => ProgressBar::new_spinner(),
    };
    let template = match (total.is_some(), is_bytes) {
        (true, true) => "{msg:10} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
        (true, false) => "{msg:10} [{bar:30}] {human_pos}/{human_len} {per_sec} eta {eta}",
        (false, _) => "{msg:10} {spinner} {human_pos} records {per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar
}
