//! The committed man pages, completions and tables equal what the code says.
//! `BLESS=1 tests/run generated` writes them anew.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Inline, Roff, bold, italic, roman};

use dblock::exit::TABLE;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compares a file with what it must hold, or writes it.
fn check(path: &Path, content: &str) {
    if env::var_os("BLESS").is_some() {
        fs::write(path, content).expect("the file can be written");
        return;
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == content,
        "{} is not what the code says; write it anew with BLESS=1 tests/run generated",
        path.display()
    );
}

/// Every command that has a page, with the page's name.
fn pages() -> Vec<(String, Command)> {
    let mut whole = dblock::cli::command().disable_help_subcommand(true);
    whole.build();
    let mut pages = vec![("dblock".to_owned(), whole.clone())];
    for sub in whole.get_subcommands() {
        let name = format!("dblock-{}", sub.get_name());
        pages.push((name, sub.clone()));
    }
    pages
}

fn page(name: &str, command: Command) -> String {
    let is_whole = name == "dblock";
    let man = Man::new(command)
        .title(name.to_uppercase())
        .source(concat!("dblock ", env!("CARGO_PKG_VERSION")))
        .manual("dblock");
    let mut text = Vec::new();
    man.render_title(&mut text).expect("renders");
    man.render_name_section(&mut text).expect("renders");
    man.render_synopsis_section(&mut text).expect("renders");
    man.render_description_section(&mut text).expect("renders");
    if is_whole {
        man.render_subcommands_section(&mut text).expect("renders");
    }
    man.render_options_section(&mut text).expect("renders");
    let mut text = String::from_utf8(text).expect("roff is text");

    let sections = root()
        .join("man/sections")
        .join(name.trim_start_matches("dblock-"))
        .with_extension("txt");
    let mut roff = Roff::new();
    exit_status(&mut roff);
    extra_sections(&mut roff, &fs::read_to_string(sections).unwrap_or_default());
    see_also(&mut roff, name);
    text.push_str(&roff.render());
    // The renderer explains its quoting in each part; once is enough.
    let prologue = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";
    let mut parts = text.split(prologue);
    let first = parts.next().unwrap_or_default().to_owned();
    first + prologue + &parts.collect::<String>()
}

fn exit_status(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for row in TABLE {
        roff.control("TP", []);
        roff.text([bold(row.code.to_string())]);
        roff.text([roman(row.meaning)]);
    }
    roff.control("PP", []);
    roff.text([roman(
        "Any other status of run is that of the job. If the job died of a signal, \
         dblock dies of the same one, which a shell shows as 128 + n.",
    )]);
}

/// Renders the sections of a page that the command line does not tell:
/// `# TITLE`, `term:: text`, `$ code`, and paragraphs with `*bold*` words.
fn extra_sections(roff: &mut Roff, source: &str) {
    let mut code = false;
    for line in source.lines() {
        if code && !line.starts_with("$ ") {
            roff.control("EE", []);
            roff.control("RE", []);
            code = false;
        }
        if let Some(title) = line.strip_prefix("# ") {
            roff.control("SH", [title]);
        } else if let Some(text) = line.strip_prefix("$ ") {
            if !code {
                roff.control("PP", []);
                roff.control("RS", ["4"]);
                roff.control("EX", []);
                code = true;
            }
            roff.text([roman(text)]);
        } else if let Some((term, text)) = line.split_once(":: ") {
            roff.control("TP", []);
            roff.text([bold(term)]);
            roff.text(inlines(text));
        } else if line.is_empty() {
            roff.control("PP", []);
        } else {
            roff.text(inlines(line));
        }
    }
    if code {
        roff.control("EE", []);
        roff.control("RE", []);
    }
}

fn inlines(text: &str) -> Vec<Inline> {
    text.split('*')
        .enumerate()
        .map(|(number, part)| {
            if number % 2 == 1 {
                bold(part)
            } else {
                roman(part)
            }
        })
        .collect()
}

fn see_also(roff: &mut Roff, name: &str) {
    roff.control("SH", ["SEE ALSO"]);
    let mut inlines = Vec::new();
    for (other, _) in pages() {
        if other != name {
            if !inlines.is_empty() {
                inlines.push(roman(", "));
            }
            inlines.push(italic(other));
            inlines.push(roman("(1)"));
        }
    }
    roff.text(inlines);
}

#[test]
fn man_pages() {
    let mut wanted = Vec::new();
    for (name, command) in pages() {
        let path = root().join("man").join(&name).with_extension("1");
        check(&path, &page(&name, command));
        wanted.push(path);
    }
    let there = fs::read_dir(root().join("man")).expect("the folder is there");
    let mut there: Vec<PathBuf> = there
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .collect();
    there.sort();
    wanted.sort();
    assert_eq!(there, wanted, "man holds the pages and nothing else");
}

#[test]
fn completions() {
    let files = [
        (Shell::Bash, "dblock.bash"),
        (Shell::Zsh, "_dblock"),
        (Shell::Fish, "dblock.fish"),
        (Shell::Elvish, "dblock.elv"),
        (Shell::PowerShell, "_dblock.ps1"),
    ];
    for (shell, file) in files {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut dblock::cli::command(), "dblock", &mut text);
        let text = String::from_utf8(text).expect("completions are text");
        check(&root().join("completions").join(file), &text);
    }
}

#[test]
fn the_table_of_exit_statuses_in_the_readme() {
    let readme = fs::read_to_string(root().join("README.md")).expect("there is a README");
    for row in TABLE {
        let line = format!("| {} | {} |", row.code, row.meaning);
        assert!(readme.contains(&line), "README.md lacks the line\n{line}");
    }
}

#[test]
fn each_package_has_its_reason() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("there is a manifest");
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("there is a guide");
    let packages = manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .take_while(|line| !line.starts_with("[profile"))
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name));
    for package in packages {
        assert!(
            text.contains(&format!("| {package} |")),
            "CONTRIBUTING.md does not say why {package} is needed"
        );
    }
}
