//! The files of a new handler's folder, embedded. `host/templates/README.md` says what they are.

/// A file of a new folder: its path, and its text with `{{name}}` and `{{snake}}` in it.
pub(super) type Template = (&'static str, &'static str);

/// The contract, in every new folder.
pub(super) const CONTRACT: Template =
    ("wit/v0.1/handler.wit", include_str!("../../../../wit/v0.1/handler.wit"));

/// What is a handler's own, in Rust.
pub(super) const RUST: [Template; 9] = [
    (".gitignore", include_str!("../../../templates/rust/gitignore")),
    ("Cargo.toml", include_str!("../../../templates/rust/Cargo.toml.template")),
    ("README.md", include_str!("../../../templates/rust/README.md")),
    ("cases/build.json", include_str!("../../../templates/rust/cases/build.json")),
    ("cases/item-deleted.json", include_str!("../../../templates/rust/cases/item-deleted.json")),
    ("src/decide.rs", include_str!("../../../templates/rust/src/decide.rs")),
    ("src/lib.rs", include_str!("../../../templates/rust/src/lib.rs")),
    ("src/manifest.rs", include_str!("../../../templates/rust/src/manifest.rs")),
    ("tests/cases.rs", include_str!("../../../templates/rust/tests/cases.rs")),
];

/// The same in TypeScript.
pub(super) const TYPESCRIPT: [Template; 9] = [
    (".gitignore", include_str!("../../../templates/typescript/gitignore")),
    ("README.md", include_str!("../../../templates/typescript/README.md")),
    ("cases/build.json", include_str!("../../../templates/typescript/cases/build.json")),
    ("cases/item-deleted.json", include_str!("../../../templates/typescript/cases/item-deleted.json")),
    ("package-lock.json", include_str!("../../../templates/typescript/package-lock.json")),
    ("package.json", include_str!("../../../templates/typescript/package.json")),
    ("src/handler.ts", include_str!("../../../templates/typescript/src/handler.ts")),
    ("src/salvage.ts", include_str!("../../../templates/typescript/src/salvage.ts")),
    ("tsconfig.json", include_str!("../../../templates/typescript/tsconfig.json")),
];

/// A file of the SDK: where it is here, and in a new folder.
macro_rules! sdk {
    ($($path:literal)*) => {
        [$((
            concat!("vendor/salvage-handler-sdk/src/", $path),
            include_str!(concat!("../../../../handlers/sdk/src/", $path)),
        )),*]
    };
}

/// The SDK's manifest; its own inherits from this workspace.
pub(super) const SDK_MANIFEST: Template = (
    "vendor/salvage-handler-sdk/Cargo.toml",
    include_str!("../../../templates/rust/sdk.Cargo.toml.template"),
);

/// The SDK's sources. A test holds the list against the folder.
pub(super) const SDK: [Template; 18] = sdk![
    "cases/declared.rs"
    "cases/diff.rs"
    "cases/file.rs"
    "cases/mod.rs"
    "cases/rules.rs"
    "cases/tests.rs"
    "decision.rs"
    "error.rs"
    "host_rules.rs"
    "inputs.rs"
    "job.rs"
    "lib.rs"
    "log.rs"
    "manifest.rs"
    "options.rs"
    "row.rs"
    "text.rs"
    "wasm.rs"
];
