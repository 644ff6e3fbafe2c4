//! The program `dblock`. Everything it does is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(dblock::run(std::env::args_os()).end())
}
