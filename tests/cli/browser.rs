//! Reports in a browser: headless Chromium opens them and runs their script. Where it is not installed, or cannot start, the
//! test says so and ends.

use crate::{Folder, small_plan};
use std::process::Command;

const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

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

/// A page that shows another one in a frame of `WIDTH` pixels and says, in its title, what `look.js` finds in it.
const VIEW: &str = "<!DOCTYPE html><title></title><iframe src=page.html width=WIDTH height=2000 style='border:0'></iframe><script>
LOOK
const frame = document.querySelector('iframe');
frame.onload = () => setTimeout(() => {
  const inner = frame.contentWindow;
  const scheme = inner.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  document.title = [scheme, ...look(inner)].join(' | ');
}, 500);
</script>";

/// Content stays within wide and narrow windows, text stands out, and something is drawn, as light and as dark as the reader's
/// system is set.
fn check_views(folder: &Folder, command: &str) {
    // Without more, Chromium takes the system to be light.
    let schemes = [("dark", "--blink-settings=preferredColorScheme=0"), ("light", "--no-first-run")];
    for (width, (scheme, setting)) in
        ["400", "1280"].into_iter().flat_map(|width| schemes.map(|of| (width, of)))
    {
        folder.write("view.html", &VIEW.replace("WIDTH", width).replace("LOOK", include_str!("look.js")));
        let arguments = ["--dump-dom", "--allow-file-access-from-files", setting];
        let title = |shown: String| {
            let rest = shown.split_once("<title>")?.1.to_string();
            rest.split_once("</title>").map(|(title, _)| title.to_string()).filter(|title| !title.is_empty())
        };
        // On a busy machine the page's time may end before its drawings: what is wrong is wrong each time.
        let mut last = None;
        for shown in (0..5).filter_map(|_| chromium(folder, &arguments, "view.html").and_then(title)) {
            let is_right = shown == scheme;
            last = Some(shown);
            if is_right {
                break;
            }
        }
        assert_eq!(last.as_deref(), Some(scheme), "{command}, {width} pixels");
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
        check_views(&folder, command);
        // A picture of the page is more than white.
        let picture = format!("--screenshot={}", folder.path("page.png").display());
        chromium(&folder, &[&picture], "page.html").unwrap();
        let size = std::fs::metadata(folder.path("page.png")).unwrap().len();
        assert!(size > 30_000, "{command}: a screenshot of {size} bytes");
    }
    folder.write("jobs.toml", crate::fleet::JOBS);
    let question = "--model gpt2 --cluster dgx-a100 --seq 1024 --global-batch 16";
    for command in [
        &format!("plan {question}"),
        &format!("what-if {question} --vary global-batch=16,32,64"),
        "fleet jobs.toml --cluster dgx-a100 --preempt",
    ] {
        let ran = folder.run(&format!("{command} --report page.html --quiet"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        check_views(&folder, command);
    }
}
