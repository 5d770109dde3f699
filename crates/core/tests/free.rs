//! That an event nobody listens to is free: what the compiler leaves of it, counted.

use std::path::Path;
use std::process::Command;

/// A function that does nothing but tell an event. The event's own code is far away, as it is in `observe`.
const PROBE: &str = r#"
#[path = "GATE"]
mod gate;

#[unsafe(no_mangle)]
pub fn probe(number: &mut u64) {
    if gate::is_open() {
        told(number);
    }
}

#[cold]
#[inline(never)]
fn told(number: &mut u64) {
    *number = number.wrapping_mul(31).rotate_left(7) + std::process::id() as u64;
}

pub mod observe {
    pub fn set() {
        crate::gate::open();
    }
}
"#;

/// A load and compare, a branch, a return; on machines without memory operands a few more, to make the address.
const INSTRUCTIONS_MAX: usize = 6;

/// What follows the label of the function, up to its return: the path that is taken where nobody listens.
fn taken(assembly: &str) -> Vec<&str> {
    let mut lines = assembly.lines().map(str::trim).skip_while(|line| *line != "probe:").skip(1);
    let mut instructions = Vec::new();
    for line in lines.by_ref() {
        let is_label_or_directive = line.is_empty() || line.ends_with(':') || line.starts_with(['.', '#', '/']);
        if !is_label_or_directive {
            instructions.push(line);
            if line.starts_with("ret") {
                break;
            }
        }
    }
    instructions
}

#[test]
fn an_event_that_nobody_listens_to_is_a_load_and_a_branch() {
    let gate = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/observe/gate.rs");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, assembly) = (folder.join("free.rs"), folder.join("free.s"));
    // `pub(super)` needs a module above.
    let gate = gate.to_str().expect("a path in UTF-8");
    std::fs::write(&source, PROBE.replace("GATE", gate)).expect("the test's folder takes files");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=lib", "-Copt-level=3", "--emit=asm", "-o"])
        .args([&assembly, &source])
        .output()
        .expect("rustc is there, since it built this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let assembly = std::fs::read_to_string(&assembly).expect("what rustc wrote");
    let instructions = taken(&assembly);
    assert!(!instructions.is_empty(), "no function `probe` in what rustc wrote:\n{assembly}");
    assert!(instructions.len() <= INSTRUCTIONS_MAX, "{instructions:#?}");
    let locked = |line: &&&str| ["lock", "xchg", "mfence", "dmb", "ldar"].iter().any(|word| line.starts_with(word));
    assert_eq!(instructions.iter().find(locked), None, "the load must order nothing: {instructions:#?}");
}
