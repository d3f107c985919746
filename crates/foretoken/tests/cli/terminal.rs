//! `foretoken chat` in a terminal: line editing, history, and what is shown.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};

use super::chat::{chat, interrupt};
use super::*;

/// A process in a terminal of its own; killed when dropped.
struct Terminal {
    child: Child,
    keys: File,
    shown: Arc<Mutex<String>>,
    /// How much of it was waited for.
    seen: usize,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        let size = Winsize {
            ws_row: 24,
            ws_col: 60,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).expect("a terminal");
        let end = || pty.slave.try_clone().unwrap();
        let child = command
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .env("TERM", "xterm")
            .spawn()
            .unwrap();
        // The command holds ends of it too.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let keys = File::from(pty.master);
        let mut screen = keys.try_clone().unwrap();
        let shown = Arc::<Mutex<String>>::default();
        let more = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                more.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Self {
            child,
            keys,
            shown,
            seen: 0,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is shown, behind what was waited for before; returns what came before it.
    fn wait(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let shown = self.shown.lock().unwrap();
            if let Some(at) = shown[self.seen..].find(text) {
                let before = shown[self.seen..][..at].to_string();
                self.seen += at + text.len();
                return before;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{text:?} is not shown in a minute: {:?}",
                &shown[self.seen..]
            );
            drop(shown);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Types a line where a prompt is.
    fn enter(&mut self, line: &str) {
        self.wait("> ");
        self.press(line);
        self.press("\r");
    }

    fn ended(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory).unwrap();
    directory
}

#[test]
fn lines_are_edited_and_kept_for_the_next_time() {
    let cache = directory("terminal-history");
    let history = cache.join("history");
    let saved = |number: u32| cache.join(format!("{number}.json"));
    let asked = |number| {
        let messages: Value = serde_json::from_slice(&std::fs::read(saved(number)).unwrap()).unwrap();
        messages[0]["content"].as_str().unwrap().to_string()
    };
    let start = |args: &str| {
        Terminal::start(chat(&format!("-n 4 --temp 0 {} {args}", only("z"))).env("FORETOKEN_CACHE", &cache))
    };
    // A typing error mended, a line that goes on, and a paste of two more.
    let mut terminal = start("");
    terminal.enter("hem\x7fn\\");
    terminal.wait(". ");
    terminal.press("\x1b[200~and\r\negg\x1b[201~\r");
    terminal.wait("zzzz");
    terminal.enter(&format!("/save {}", saved(1).display()));
    terminal.enter("/quit");
    assert_eq!(terminal.ended(), Some(0));
    assert_eq!(asked(1), "hen\nand\negg");
    let mode = std::fs::metadata(&history).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Up, three times, to the message.
    let mut terminal = start("");
    terminal.enter("\x1b[A\x1b[A\x1b[A");
    terminal.wait("zzzz");
    terminal.enter(&format!("/save {}", saved(2).display()));
    terminal.wait("> ");
    terminal.press("\x04");
    assert_eq!(terminal.ended(), Some(0));
    assert_eq!(asked(2), asked(1));
    let kept = std::fs::read(&history).unwrap();
    let mut terminal = start("--no-history");
    terminal.enter("secret");
    terminal.wait("zzzz");
    terminal.enter("/quit");
    assert_eq!(terminal.ended(), Some(0));
    assert_eq!(std::fs::read(&history).unwrap(), kept);
    // One that cannot be read is said, and left alone.
    std::fs::write(&history, b"#V2\n\xff\xfe\n").unwrap();
    let mut terminal = start("");
    terminal.wait("note: no history is kept");
    terminal.enter("hen");
    terminal.wait("zzzz");
    terminal.enter("/quit");
    assert_eq!(terminal.ended(), Some(0));
    assert_eq!(std::fs::read(&history).unwrap(), b"#V2\n\xff\xfe\n");
}

#[test]
fn an_interrupt_takes_back_what_is_typed_then_leaves() {
    let mut terminal = Terminal::start(&mut chat("--no-history"));
    terminal.wait("> ");
    terminal.press("hen");
    terminal.wait("hen");
    terminal.press("\x03");
    terminal.wait("> ");
    terminal.press("\x03");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn an_interrupted_answer_is_followed_by_a_prompt() {
    let mut terminal = Terminal::start(&mut endless("chat --no-history --drafter none"));
    terminal.enter("hen");
    // The line below it: the answer has begun.
    terminal.wait("tokens/s");
    interrupt(&terminal.child);
    terminal.wait("note: stopped");
    terminal.enter("/stats");
    terminal.wait("finished: cancelled");
    terminal.enter("/quit");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn an_error_is_shown_and_the_conversation_goes_on() {
    let mut terminal = Terminal::start(&mut chat(&format!("-n 4 --no-history {}", only("z"))));
    terminal.enter("/nonsense");
    terminal.wait("error: there is no command /nonsense");
    terminal.enter("hen");
    terminal.wait("zzzz");
    terminal.wait("4 tokens");
    terminal.enter("/quit");
    assert_eq!(terminal.ended(), Some(0));
}

#[test]
fn a_model_does_not_steer_the_terminal() {
    for command in ["chat", "run"] {
        let args = format!("-n 3 {}", only("\u{1b}"));
        let mut terminal = match command {
            "run" => Terminal::start(run(&args).args(["-p", "hen"])),
            _ => Terminal::start(&mut chat(&format!("--no-history {args}"))),
        };
        if command == "chat" {
            terminal.enter("hen");
        }
        terminal.wait(r"\u{1b}\u{1b}\u{1b}");
        if command == "chat" {
            terminal.enter("/quit");
        }
        assert_eq!(terminal.ended(), Some(0));
        assert!(!terminal.shown.lock().unwrap().contains("\u{1b}\u{1b}"));
    }
}

#[test]
fn the_line_below_an_answer_goes_away_and_its_last_state_stays() {
    let args = format!("-n 200 --no-history --drafter none {}", only("z"));
    let mut terminal = Terminal::start(&mut chat(&args));
    terminal.enter("hen");
    terminal.wait("reading");
    terminal.enter("/quit");
    assert_eq!(terminal.ended(), Some(0));
    // What a terminal of 60 columns shows of it.
    let shown = terminal.shown.lock().unwrap();
    let screen = screen(&shown, 60);
    let at = screen.iter().position(|row| row.contains('z')).unwrap();
    let rows: Vec<&str> = screen[at..at + 5].iter().map(|row| row.trim_end()).collect();
    let full = "z".repeat(60);
    assert_eq!(rows[..4], [&*full, &full, &full, &"z".repeat(20)], "{screen:#?}");
    assert!(rows[4].starts_with("200 tokens"), "{screen:#?}");
}

/// The rows that a terminal shows after these bytes: as much of one as foretoken needs below its answers.
fn screen(bytes: &str, columns: usize) -> Vec<String> {
    let mut rows = vec![vec![' '; columns]];
    let (mut row, mut column, mut saved) = (0, 0, (0, 0));
    let mut input = bytes.chars();
    while let Some(c) = input.next() {
        match c {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{1b}' => match input.next().unwrap() {
                'D' => row += 1,
                '7' => saved = (row, column),
                '8' => (row, column) = saved,
                '[' => {
                    let mut number = String::new();
                    let end = loop {
                        match input.next().unwrap() {
                            c if c.is_ascii_alphabetic() => break c,
                            c => number.push(c),
                        }
                    };
                    let n: usize = number.parse().unwrap_or(1);
                    match end {
                        'A' => row -= n,
                        'B' => row += n,
                        'C' => column += n,
                        'D' => column -= n,
                        'K' => rows[row][column.min(columns)..].fill(' '),
                        'J' => {
                            rows[row][column..].fill(' ');
                            rows.truncate(row + 1);
                        }
                        'm' | 'h' | 'l' => {}
                        other => panic!("unknown: {other:?}"),
                    }
                }
                other => panic!("unknown: {other:?}"),
            },
            c => {
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                rows.resize(rows.len().max(row + 1), vec![' '; columns]);
                rows[row][column] = c;
                column += 1;
            }
        }
        rows.resize(rows.len().max(row + 1), vec![' '; columns]);
    }
    rows.into_iter().map(|row| row.into_iter().collect()).collect()
}
