//! Examines a page of `dist-doctor --html` in headless Chromium. The test adds a script to the
//! page, and serves it on a port, because Chromium notes requests for pages of servers only. The
//! script writes the layout that the browser has computed, and the requested resources, into the
//! page. Chromium prints the page.

use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// The time limit for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(90);

const SCRIPT: &str = "<script>addEventListener('load', () => {
const box = node => { const b = node.getBoundingClientRect();
  return { top: b.top, bottom: b.bottom, left: b.left, right: b.right }; };
const bar = node => ({ ...box(node), state: node.getAttribute('class'),
  title: node.querySelector('title').textContent,
  color: getComputedStyle(node).fill });
const label = node => ({ ...box(node), text: node.textContent,
  culprit: node.getAttribute('class') === 'culprit' });
const chart = svg => ({ ...box(svg), labels: [...svg.querySelectorAll('text')].map(label),
  bars: [...svg.querySelectorAll('rect')].map(bar) });
const verdict = document.querySelector('.verdict');
const found = {
  verdict: verdict && { ...box(verdict), text: verdict.textContent },
  tops: [...document.querySelectorAll('table, svg, ul')].map(node => box(node).top),
  waits: [...document.querySelectorAll('td')].length && [...document.querySelectorAll('tr')]
    .slice(1).map(row => [...row.cells].map(cell => cell.textContent)),
  charts: [...document.querySelectorAll('svg')].map(chart),
  requests: performance.getEntriesByType('resource').map(entry => entry.name),
};
const place = document.createElement('pre');
place.id = 'found';
place.textContent = JSON.stringify(found);
document.body.appendChild(place);
});</script>";

/// Returns the browser of this machine, if there is one.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let files = BROWSERS.iter().flat_map(|name| folders.iter().map(move |it| it.join(name)));
    files.into_iter().find(|file| file.is_file())
}

/// Loads a page, and returns the findings of the script. `folder` is for files of the browser.
pub(crate) fn examine(browser: &Path, page: &str, folder: &Path) -> Value {
    let (head, tail) = page.rsplit_once("</body>").expect("the page has a body");
    let url = serve(format!("{head}{SCRIPT}</body>{tail}"));
    let output = folder.join("dom.html");
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args([
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    ]);
    command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    command.args(["--window-size=1200,1600", "--dump-dom"]);
    command.arg(url);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(File::create(&output).expect("a file for the page"));
    let mut child = command.spawn().expect("the browser starts");
    let deadline = Instant::now() + PAGE_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().expect("the status of the browser") {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().expect("the browser is ended");
            child.wait().expect("the browser has ended");
            panic!("the browser took more than {PAGE_TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let dom = fs::read_to_string(&output).expect("the page as text");
    assert!(status.success(), "{status}: {dom}");
    let found =
        dom.split_once("<pre id=\"found\">").unwrap_or_else(|| panic!("no result: {dom}")).1;
    let found = found.split("</pre>").next().unwrap_or_default();
    let text = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|cause| panic!("{cause}: {text}"))
}

/// Serves a page at the returned address until the test program ends.
fn serve(page: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let page = page.clone();
            // The browser also makes connections without a request.
            std::thread::spawn(move || respond(stream, &page));
        }
    });
    format!("http://127.0.0.1:{port}/")
}

/// Responds to one request: with the page, or that no other file exists.
fn respond(mut stream: TcpStream, page: &str) {
    let mut request = Vec::new();
    let mut bytes = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut bytes) {
            Ok(count) if count > 0 => request.extend(&bytes[..count]),
            _ => return,
        }
    }
    let (status, body) = match request.starts_with(b"GET / ") {
        true => ("200 OK", page),
        false => ("404 Not Found", ""),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    drop(stream.write_all((head + body).as_bytes()));
}

/// Returns the number in a field.
pub(crate) fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {value}"))
}

/// Returns the entries of a field.
pub(crate) fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or_else(|| panic!("no list {field} in {value}"), Vec::as_slice)
}
