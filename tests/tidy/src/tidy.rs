//! Lengths of functions, forbidden texts, links between pages.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders without files of ours.
const OUTSIDE: &[&str] = &["target", ".git", "data", "corpus", "artifacts", "node_modules"];
/// Files that are checked; other files are data.
const TEXTS: &[&str] =
    &["rs", "md", "toml", "sh", "py", "html", "json", "yml", "yaml", "js", "mjs", "css", "service", "timer"];
/// Names without an ending that are texts.
const NAMES: &[&str] = &["Makefile", "down", "run", "up", "with"];

fn root() -> PathBuf {
    Path::new("../..").canonicalize().unwrap()
}

/// All texts of the repository with their paths below its root.
pub(crate) fn texts() -> Vec<(PathBuf, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !OUTSIDE.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if TEXTS.contains(&ending) || NAMES.contains(&name.as_str()) {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(&root).unwrap().to_owned(), text));
            }
        }
    }
    assert!(found.len() > 20, "the repository was not found");
    found
}

fn sources() -> impl Iterator<Item = (PathBuf, String)> {
    texts().into_iter().filter(|(path, _)| path.extension().is_some_and(|ending| ending == "rs"))
}

/// Lines that contain one of the words, as `path:line: word`.
fn lines_with(files: impl Iterator<Item = (PathBuf, String)>, words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            for word in words.iter().filter(|word| line.contains(word.as_str())) {
                found.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    found
}

/// clippy counts the lines of every function; this checks that the rule is on, its number, and that no function
/// is exempt from it.
#[test]
fn no_function_may_exceed_a_hundred_lines() {
    let lints: toml::Table = fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    assert_eq!(lints["workspace"]["lints"]["clippy"]["too_many_lines"].as_str(), Some("warn"));
    let clippy: toml::Table = fs::read_to_string(root().join("clippy.toml")).unwrap().parse().unwrap();
    assert_eq!(clippy["too-many-lines-threshold"].as_integer(), Some(100));
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    assert!(makefile.contains("-D warnings"), "make check turns warnings into errors");

    for crate_folder in fs::read_dir(root().join("crates")).unwrap() {
        let manifest = crate_folder.unwrap().path().join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
        assert_eq!(manifest["lints"]["workspace"].as_bool(), Some(true), "{}", manifest["package"]["name"]);
    }
    // Concatenated here, so that this file doesn't name itself.
    let exempt = ["allow", "expect"].map(|word| format!("{word}(clippy::{}", "too_many_lines"));
    assert_eq!(lines_with(sources(), &exempt), Vec::<String>::new());
}

#[test]
fn nothing_is_left_to_do() {
    let words = ["todo", "unimplemented"].map(|word| format!("{word}!("));
    assert_eq!(lines_with(sources(), &words), Vec::<String>::new());
}

/// The product must build without the folder `tests`, which holds other programs and rivals.
#[test]
fn no_product_source_includes_a_file_of_tests() {
    let is_product =
        |path: &Path| path.starts_with("crates") && path.components().any(|part| part.as_os_str() == "src");
    let product: Vec<_> = sources().filter(|(path, _)| is_product(path)).collect();
    assert!(product.len() > 100, "only {} sources were found", product.len());
    let includes = lines_with(product.into_iter(), &["../tests/".to_owned()]);
    assert_eq!(includes, Vec::<String>::new());
}

/// A path of the machine where something was written is of no use elsewhere.
#[test]
fn no_text_names_a_machines_folders() {
    let words = ["work", "root", "home", "Users"].map(|folder| format!("/{folder}/"));
    // A content or pubsub topic may look like a path; a folder's name follows a space, a quote or a bracket.
    let named: Vec<String> =
        words.iter().flat_map(|word| [' ', '"', '\'', '`', '(', '='].map(|c| format!("{c}{word}"))).collect();
    assert_eq!(lines_with(texts().into_iter(), &named), Vec::<String>::new());
}

/// A Markdown page below the root of the repository, with its prose apart from code.
struct Page {
    path: PathBuf,
    /// Each line outside code blocks with its number, from 1 on.
    prose: Vec<(usize, String)>,
}

fn pages() -> Vec<Page> {
    let is_page = |path: &Path| path.extension().is_some_and(|ending| ending == "md");
    let pages = texts().into_iter().filter(|(path, _)| is_page(path));
    pages.map(|(path, text)| Page { path, prose: prose(&text) }).collect()
}

fn prose(text: &str) -> Vec<(usize, String)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push((number + 1, line.to_owned()));
        }
    }
    lines
}

/// A line without the text between backquotes.
fn without_inline_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The targets of `[text](target)`, `![text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<String> {
    let line = without_inline_code(line);
    let mut found = Vec::new();
    for rest in line.split("](").skip(1) {
        let target = rest.split(')').next().unwrap_or_default();
        found.push(target.split(' ').next().unwrap_or_default().to_owned());
    }
    if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
        found.push(target.trim().to_owned());
    }
    found
}

/// The anchors of a page's headings, as GitHub and most other renderers make them.
fn anchors(page: &Page) -> Vec<String> {
    let (mut slugs, mut anchors) = (Vec::new(), Vec::new());
    for (_, line) in &page.prose {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug: String =
            kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
        let earlier = slugs.iter().filter(|known| **known == slug).count();
        anchors.push(if earlier == 0 { slug.clone() } else { format!("{slug}-{earlier}") });
        slugs.push(slug);
    }
    anchors
}

/// Whether a target exists: an address elsewhere, a file of the repository, a heading.
fn leads_somewhere(target: &str, from: &Page, pages: &[Page]) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = root().join(from.path.parent().unwrap());
    let path = if file.is_empty() { root().join(&from.path) } else { folder.join(file) };
    let Ok(path) = path.canonicalize() else { return false };
    let Ok(path) = path.strip_prefix(root()) else { return false };
    let page = pages.iter().find(|page| page.path == path);
    anchor.is_empty() || page.is_some_and(|page| anchors(page).iter().any(|known| known == anchor))
}

#[test]
fn links_between_pages_lead_to_files_and_headings_that_exist() {
    let pages = pages();
    let (mut links, mut broken) = (0, Vec::new());
    for page in &pages {
        for (number, line) in &page.prose {
            for target in targets(line) {
                links += 1;
                if !leads_somewhere(&target, page, &pages) {
                    broken.push(format!("{}:{number}: {target}", page.path.display()));
                }
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn a_link_without_its_file_or_heading_is_noticed() {
    let page = Page {
        path: PathBuf::from("docs/none.md"),
        prose: prose("# Two words\n```\n# no heading\n[a](b)\n```\n## It's `code`, too\n## Two words"),
    };
    assert_eq!(anchors(&page), ["two-words", "its-code-too", "two-words-1"]);
    assert_eq!(targets("[a](b.md#c), `[x](y)` and ![d](e.png \"title\")"), ["b.md#c", "e.png"]);
    assert_eq!(targets("[name]: https://example.org"), ["https://example.org"]);
    let pages = [Page { path: PathBuf::from("README.md"), prose: prose("# Front") }];
    for (target, leads) in [
        ("../README.md", true),
        ("../README.md#front", true),
        ("../README.md#back", false),
        ("missing.md", false),
        ("../../outside.md", false),
        ("https://example.org/missing", true),
    ] {
        assert_eq!(leads_somewhere(target, &page, &pages), leads, "{target}");
    }
}

/// The front page is read in a minute: what does not fit is in docs/.
#[test]
fn the_front_page_is_short_and_shows_the_console() {
    const LINES_MAX: usize = 130;
    const PICTURE_BYTES_MAX: u64 = 150 << 10;
    let front = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = front.lines().count();
    assert!(lines <= LINES_MAX, "README.md has {lines} lines");
    let picture = fs::metadata(root().join("docs/console.png")).unwrap();
    assert!(picture.len() <= PICTURE_BYTES_MAX, "docs/console.png has {} bytes", picture.len());
    assert!(front.contains("](docs/console.png)"));
}
