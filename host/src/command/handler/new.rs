//! `salvage handler new`: a folder that builds, tests and checks as it is, made of what this binary carries.

use std::path::Path;

use super::templates::{CONTRACT, RUST, SDK, SDK_MANIFEST, TYPESCRIPT, Template};
use crate::cli::{Exit, Language};
use crate::command::{CommandError, Done, say};

/// Makes the folder `name` in the working directory.
///
/// # Errors
/// If it is there already, or a file could not be written; what was written until then is left.
pub fn new(name: &str, language: Language) -> Done {
    let folder = Path::new(name);
    let impossible = CommandError::file(format!("the folder {name} cannot be made"));
    std::fs::create_dir(folder).map_err(impossible)?;
    let (own, next): (&[Template], _) = match language {
        Language::Rust => (&RUST, rust_steps(name)),
        Language::Typescript => (&TYPESCRIPT, typescript_steps(name)),
    };
    let shared: &[Template] = match language {
        Language::Rust => &SDK,
        Language::Typescript => &[],
    };
    for (path, text) in own {
        write(folder, path, &filled(text, name))?;
    }
    // As they are: what looks like a place to fill in there is none.
    for (path, text) in shared.iter().chain([&CONTRACT]) {
        write(folder, path, text)?;
    }
    if language == Language::Rust {
        write(folder, SDK_MANIFEST.0, SDK_MANIFEST.1)?;
    }
    say(format_args!(
        "made {name}: a handler of domain {name:?} with two cases; README.md tells more. Next:\n"
    ))?;
    say(next)?;
    Ok(Exit::Done)
}

fn rust_steps(name: &str) -> String {
    let snake = snake(name);
    format!(
        "  cd {name}\n  cargo test\n  cargo build --target wasm32-wasip2 --profile handler\n  \
         salvage handler test target/wasm32-wasip2/handler/handler_{snake}.wasm"
    )
}

fn typescript_steps(name: &str) -> String {
    format!("  cd {name}\n  npm ci\n  npm run build\n  salvage handler test build/{name}.wasm")
}

fn filled(text: &str, name: &str) -> String {
    text.replace("{{name}}", name).replace("{{snake}}", &snake(name))
}

fn snake(name: &str) -> String {
    name.replace('-', "_")
}

fn write(folder: &Path, path: &str, text: &str) -> Result<(), CommandError> {
    let path = folder.join(path);
    let unwritable = || CommandError::file(format!("{} cannot be written", path.display()));
    let parent = path.parent().expect("a path in a folder has a parent");
    std::fs::create_dir_all(parent).map_err(unwritable())?;
    std::fs::write(&path, text).map_err(unwritable())
}
