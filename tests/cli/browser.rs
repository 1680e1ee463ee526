//! Reports in a browser: headless Chromium opens them and runs their script. Where it is not installed, or cannot start, the
//! test says so and ends.

use crate::{Folder, small_plan};
use std::process::Command;

const NAMES: [&str; 2] = ["chromium", "chromium-browser"];

/// Runs Chromium on a file of the folder, and its script for up to 10 s of the page's time however busy the machine is; `None`
/// if it is not there.
fn chromium(folder: &Folder, arguments: &[&str], file: &str) -> Option<String> {
    let url = format!("file://{}", folder.path(file).display());
    let profile = format!("--user-data-dir={}", folder.path("profile").display());
    let time = "--virtual-time-budget=10000";
    let common = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,2400", time, &profile];
    let ran =
        NAMES.iter().find_map(|name| Command::new(name).args(common).args(arguments).arg(&url).output().ok());
    ran.filter(|ran| ran.status.success()).map(|ran| String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// A page that shows another one in a frame of 400 pixels and says, in its title, how wide that one's content is and which
/// colours its text has.
const NARROW: &str =
    "<!DOCTYPE html><title></title><iframe src=page.html width=400 height=2000 style='border:0'></iframe>
<script>
document.querySelector('iframe').onload = (event) => {
  const inner = event.target.contentDocument, style = event.target.contentWindow.getComputedStyle(inner.body);
  document.title = `${inner.documentElement.scrollWidth} | ${style.backgroundColor} | ${style.color}`;
};
</script>";

/// Red, green and blue of `rgb(1, 2, 3)`, in the mean.
fn brightness(colour: &str) -> f64 {
    let numbers = colour.trim().trim_start_matches("rgb(").trim_end_matches(')').split(',');
    numbers.map(|number| number.trim().parse::<f64>().unwrap()).sum::<f64>() / 3.0
}

/// Content stays within a narrow window, and text is dark on light or light on dark as the reader's system is set.
fn check_narrow(folder: &Folder, command: &str) {
    folder.write("narrow.html", NARROW);
    // Without more, Chromium takes the system to be light.
    for (dark, setting) in [(true, "--blink-settings=preferredColorScheme=0"), (false, "--no-first-run")] {
        let arguments = ["--dump-dom", "--allow-file-access-from-files", setting];
        let shown = chromium(folder, &arguments, "narrow.html").unwrap();
        let title = shown.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
        let [width, paper, ink] = title.unwrap().split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{command}: {title:?}")
        };
        assert!(width.parse::<usize>().unwrap() <= 400, "{command}: {width} pixels wide");
        let (paper, ink) = (brightness(paper), brightness(ink));
        let apart = if dark { ink - paper } else { paper - ink };
        assert!(apart > 150.0, "{command}: text {ink} on {paper}, dark: {dark}");
    }
}

#[test]
fn reports_open_in_a_browser() {
    let folder = Folder::new();
    folder.write("plan.toml", &small_plan().to_toml());
    folder.write("empty.html", "<!DOCTYPE html><title>empty</title>");
    if chromium(&folder, &["--dump-dom"], "empty.html").is_none_or(|page| !page.contains("empty")) {
        eprintln!("skipped: no chromium that starts; install the package chromium");
        return;
    }
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/formats/tests/data/two-steps.sqlite");
    for (command, parts) in [
        ("simulate plan.toml", ["Timeline of a step", "What each pipeline rank holds"]),
        (&format!("compare {trace} --plan plan.toml"), ["Times of ops by kind", "send and receive"]),
    ] {
        let ran = folder.run(&format!("{command} --report page.html"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        let page = folder.read("page.html");
        assert!(
            !page.contains("src=") && !page.contains("http://") && !page.contains("https://"),
            "{command}"
        );
        let between = |shown: &str, from: &str, to: &str| {
            let inside = shown.split_once(from).and_then(|(_, rest)| rest.split_once(to));
            inside.map_or(String::new(), |(inside, _)| inside.to_string())
        };
        // The script has filled in the part of the step that is shown, and the legend. On a busy machine the browser may tell
        // of the page before that.
        let is_filled_in = |shown: &String| {
            between(shown, "<span id=\"window\">", "</span>").contains("ms")
                && between(shown, "id=\"legend\">", "</p>").contains("forward")
        };
        let mut pages = (0..5).filter_map(|_| chromium(&folder, &["--dump-dom"], "page.html"));
        let shown = pages.find(is_filled_in).unwrap_or_else(|| panic!("{command}: the script does nothing"));
        for part in parts {
            assert!(shown.contains(part), "{command}: {part}");
        }
        check_narrow(&folder, command);
        // A picture of the page is more than white.
        let picture = format!("--screenshot={}", folder.path("page.png").display());
        chromium(&folder, &[&picture], "page.html").unwrap();
        let size = std::fs::metadata(folder.path("page.png")).unwrap().len();
        assert!(size > 30_000, "{command}: a screenshot of {size} bytes");
    }
}
