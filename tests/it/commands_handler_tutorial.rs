//! The pages that teach, followed to the letter.

use std::path::{Path, PathBuf};

use anyhow::Result;
use salvage_services::tutorial::follow;
use salvage_tests::services::salvage_binary;

use crate::commands_handler_desk::root;

/// `docs/tutorial-typescript.md` needs jco and is followed by `cargo xtask typescript`.
#[test]
fn the_rust_tutorial_leads_from_nothing_to_a_tested_handler() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // What is compiled is kept from run to run; what a reader would look for is in the folder all the same.
    let build: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tutorial");
    let variables = [("CARGO_BUILD_BUILD_DIR", build.as_path()), ("CARGO_NET_OFFLINE", Path::new("true"))];
    let followed =
        follow(&root().join("docs/tutorial-rust.md"), folder.path(), &salvage_binary()?, &variables)?;
    println!("{followed:?}");
    assert!(followed.commands > 15 && followed.files == 4, "{followed:?}");
    Ok(())
}
