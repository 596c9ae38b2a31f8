//! Whether a file is a handler, told before it serves and in words its author can act on.
//!
//! The engine would let a component with the right interface and wrong types pass until it is instantiated, and then say
//! "expected record of 3 fields, found 4" without a name. So [`Contract`] compares the types first, against the very text
//! of the contract.

use std::fmt;

use wasmtime::Engine;
use wasmtime::component::Component;
use wasmtime::component::types::{self, ComponentFunc, ComponentInstance, ComponentItem};
use wit_parser::{Function, InterfaceId, Resolve, TypeDefKind};

use super::contract::{DOMAIN, HOST_LOG, TEXT};
use super::load::LoadFault;

/// What of WASI 0.2 the host offers; behind it there is nothing.
const WASI_OFFERED: [&str; 27] = [
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
    "wasi:sockets/instance-network",
    "wasi:sockets/ip-name-lookup",
    "wasi:sockets/network",
    "wasi:sockets/tcp",
    "wasi:sockets/tcp-create-socket",
    "wasi:sockets/udp",
    "wasi:sockets/udp-create-socket",
];

/// What of the contract the host offers; the second is types only.
const OURS_OFFERED: [&str; 2] = ["salvage:handler/host-log", "salvage:handler/types"];

/// A WebAssembly file's first four bytes.
const MAGIC: &[u8] = b"\0asm";

/// Version and layer of a core module.
const CORE: [u8; 4] = [1, 0, 0, 0];

/// Version and layer of a component.
const COMPONENT: [u8; 4] = [0x0d, 0, 1, 0];

/// Tells a whole component from what is none, by its outermost structure.
///
/// # Errors
/// What it is instead.
pub(super) fn form(bytes: &[u8]) -> Result<(), LoadFault> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        let is_beginning = MAGIC.starts_with(bytes);
        return Err(if is_beginning {
            LoadFault::Truncated { bytes: bytes.len() }
        } else {
            LoadFault::NotWasm
        });
    };
    match rest.first_chunk::<4>() {
        Some(&COMPONENT) => {}
        Some(&CORE) => return Err(LoadFault::CoreModule),
        Some(_) => return Err(LoadFault::NotWasm),
        None => return Err(LoadFault::Truncated { bytes: bytes.len() }),
    }
    if sections_are_whole(&rest[4..]) { Ok(()) } else { Err(LoadFault::Truncated { bytes: bytes.len() }) }
}

/// Whether the last section ends where the file does. A section is an id, its size (LEB128) and as many bytes.
fn sections_are_whole(mut rest: &[u8]) -> bool {
    while let [_id, after @ ..] = rest {
        let Some(size_bytes) = after.iter().position(|byte| byte & 0x80 == 0).filter(|at| *at < 5) else {
            return false;
        };
        let (size, body) = after.split_at(size_bytes + 1);
        let size = size.iter().rev().fold(0, |sum, byte| (sum << 7) | usize::from(byte & 0x7f));
        match body.get(size..) {
            Some(next) => rest = next,
            None => return false,
        }
    }
    true
}

/// What a component imports, in its order.
pub(super) fn imports(component: &Component, engine: &Engine) -> Vec<String> {
    component.component_type().imports(engine).map(|(name, _)| name.to_owned()).collect()
}

/// The imports that the host has no answer to.
pub(super) fn not_offered(imports: &[String]) -> Vec<String> {
    let is_offered = |name: &str| {
        let plain = name.split_once('@').map_or(name, |(plain, _version)| plain);
        // Whether a version of ours fits is the engine's to say.
        WASI_OFFERED.contains(&plain) || OURS_OFFERED.contains(&plain)
    };
    imports.iter().filter(|name| !is_offered(name)).cloned().collect()
}

/// Where a component and the contract differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The function, of those the handler exports or imports.
    pub function: String,
    /// Type, field or case, and how it differs.
    pub detail: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "function `{}`: {}", self.function, self.detail)
    }
}

/// A released contract, read from its text.
pub(super) struct Contract {
    resolve: Resolve,
}

impl Contract {
    /// Version 0.1.
    pub(super) fn v0_1() -> Self {
        let mut resolve = Resolve::default();
        resolve.push_source("handler.wit", TEXT).expect("the contract is part of this program and parses");
        Self { resolve }
    }

    /// Whether a component keeps the contract in what it exports and in what it imports of ours.
    ///
    /// # Errors
    /// [`LoadFault::WrongWorld`] if the interface is not there, [`LoadFault::Contract`] if its types differ.
    pub(super) fn check(&self, component: &Component, engine: &Engine) -> Result<(), LoadFault> {
        let Some((ComponentItem::ComponentInstance(domain), _)) = component.get_export(None, DOMAIN) else {
            let exports = component.component_type();
            let found: Vec<String> = exports.exports(engine).map(|(name, _)| name.to_owned()).collect();
            let plain = DOMAIN.split_once('@').map_or(DOMAIN, |(plain, _version)| plain);
            let other = found.iter().find_map(|name| name.strip_prefix(plain)?.strip_prefix('@'));
            return Err(match other {
                Some(version) => LoadFault::OtherContract { found: version.to_owned() },
                None => LoadFault::WrongWorld { found },
            });
        };
        self.compare(DOMAIN, &domain, engine).map_err(LoadFault::Contract)?;
        for (name, import) in component.component_type().imports(engine) {
            // A patch of the version names the same interface; the engine links it, too.
            if let ComponentItem::ComponentInstance(log) = import.ty
                && without_patch(name) == without_patch(HOST_LOG)
            {
                self.compare_used(HOST_LOG, &log, engine).map_err(LoadFault::Contract)?;
            }
        }
        Ok(())
    }

    /// Every function of the interface must be there. One more is harmless: the host does not call it.
    fn compare(&self, interface: &str, found: &ComponentInstance, engine: &Engine) -> Result<(), Misfit> {
        for (name, expected) in &self.resolve.interfaces[self.interface(interface)].functions {
            let misfit = |detail| Misfit { function: name.clone(), detail };
            match found.get_export(engine, name).map(|export| export.ty) {
                Some(ComponentItem::ComponentFunc(found)) => {
                    self.function(expected, &found).map_err(misfit)?;
                }
                _ => return Err(misfit("it is not exported".to_owned())),
            }
        }
        Ok(())
    }

    /// Every function that is imported must be the interface's.
    fn compare_used(&self, interface: &str, used: &ComponentInstance, engine: &Engine) -> Result<(), Misfit> {
        let interface = &self.resolve.interfaces[self.interface(interface)];
        for (name, import) in used.exports(engine) {
            let ComponentItem::ComponentFunc(found) = import.ty else { continue };
            let misfit = |detail| Misfit { function: name.to_owned(), detail };
            match interface.functions.get(name) {
                Some(expected) => self.function(expected, &found).map_err(misfit)?,
                None => return Err(misfit("contract 0.1 does not offer it".to_owned())),
            }
        }
        Ok(())
    }

    fn interface(&self, name: &str) -> InterfaceId {
        let mut interfaces = self.resolve.interfaces.iter();
        let found = interfaces.find(|(id, _)| self.resolve.id_of(*id).as_deref() == Some(name));
        found.expect("the contract has the interfaces that are named in this program").0
    }

    fn function(&self, expected: &Function, found: &ComponentFunc) -> Result<(), String> {
        let params = || found.params();
        if params().len() != expected.params.len() {
            let names =
                |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(format!(
                "it takes {}, in contract 0.1 {}",
                names(params().map(|(name, _)| name).collect()),
                names(expected.params.iter().map(|param| param.name.as_str()).collect())
            ));
        }
        for (expected, (name, found)) in expected.params.iter().zip(params()) {
            if expected.name != name {
                return Err(format!("it takes `{name}`, in contract 0.1 `{}`", expected.name));
            }
            self.same(&expected.ty, &found, &format!("parameter `{name}`"))?;
        }
        self.same_or_none(expected.result.as_ref(), found.results().next().as_ref(), "its result")
    }

    /// `at` says what is compared, for messages.
    fn same(&self, expected: &wit_parser::Type, found: &types::Type, at: &str) -> Result<(), String> {
        use wit_parser::Type as Expected;
        let differs = || {
            Err(format!(
                "{at} is of type `{}`, in contract 0.1 of `{}`",
                kind(found),
                self.expected_kind(expected)
            ))
        };
        match (expected, found) {
            (Expected::Bool, types::Type::Bool)
            | (Expected::U32, types::Type::U32)
            | (Expected::U64, types::Type::U64)
            | (Expected::String, types::Type::String) => Ok(()),
            (Expected::Id(id), found) => {
                let def = &self.resolve.types[*id];
                let name = def.name.as_deref().unwrap_or_default();
                match (&def.kind, found) {
                    (TypeDefKind::Type(aliased), found) => self.same(aliased, found, at),
                    (TypeDefKind::List(item), types::Type::List(found)) => {
                        self.same(item, &found.ty(), &format!("an element of {at}"))
                    }
                    (TypeDefKind::Option(some), types::Type::Option(found)) => {
                        self.same(some, &found.ty(), at)
                    }
                    (TypeDefKind::Result(result), types::Type::Result(found)) => {
                        self.same_or_none(result.ok.as_ref(), found.ok().as_ref(), at)?;
                        self.same_or_none(
                            result.err.as_ref(),
                            found.err().as_ref(),
                            &format!("the error of {at}"),
                        )
                    }
                    (TypeDefKind::Record(record), types::Type::Record(found)) => {
                        self.same_record(record, found, name)
                    }
                    (TypeDefKind::Variant(variant), types::Type::Variant(found)) => {
                        self.same_variant(variant, found, name)
                    }
                    (TypeDefKind::Enum(expected), types::Type::Enum(found)) => {
                        let expected: Vec<&str> =
                            expected.cases.iter().map(|case| case.name.as_str()).collect();
                        same_names(
                            &expected,
                            &found.names().collect::<Vec<_>>(),
                            &format!("enum `{name}`"),
                            "case",
                        )
                    }
                    _ => differs(),
                }
            }
            _ => differs(),
        }
    }

    fn same_or_none(
        &self,
        expected: Option<&wit_parser::Type>,
        found: Option<&types::Type>,
        at: &str,
    ) -> Result<(), String> {
        match (expected, found) {
            (None, None) => Ok(()),
            (Some(expected), Some(found)) => self.same(expected, found, at),
            (expected, found) => Err(format!(
                "{at} is of type `{}`, in contract 0.1 of `{}`",
                found.map_or("nothing", kind),
                expected.map_or("nothing".to_owned(), |expected| self.expected_kind(expected)),
            )),
        }
    }

    fn same_record(
        &self,
        expected: &wit_parser::Record,
        found: &types::Record,
        name: &str,
    ) -> Result<(), String> {
        let record = format!("record `{name}`");
        let names: Vec<&str> = expected.fields.iter().map(|field| field.name.as_str()).collect();
        same_names(&names, &found.fields().map(|field| field.name).collect::<Vec<_>>(), &record, "field")?;
        for (expected, found) in expected.fields.iter().zip(found.fields()) {
            self.same(&expected.ty, &found.ty, &format!("field `{}` of {record}", expected.name))?;
        }
        Ok(())
    }

    fn same_variant(
        &self,
        expected: &wit_parser::Variant,
        found: &types::Variant,
        name: &str,
    ) -> Result<(), String> {
        let variant = format!("variant `{name}`");
        let names: Vec<&str> = expected.cases.iter().map(|case| case.name.as_str()).collect();
        same_names(&names, &found.cases().map(|case| case.name).collect::<Vec<_>>(), &variant, "case")?;
        for (expected, found) in expected.cases.iter().zip(found.cases()) {
            let at = format!("case `{}` of {variant}", expected.name);
            self.same_or_none(expected.ty.as_ref(), found.ty.as_ref(), &at)?;
        }
        Ok(())
    }

    fn expected_kind(&self, expected: &wit_parser::Type) -> String {
        match expected {
            wit_parser::Type::Id(id) => self.resolve.types[*id].kind.as_str().to_owned(),
            primitive => format!("{primitive:?}").to_lowercase(),
        }
    }
}

fn without_patch(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(minor, _patch)| minor)
}

/// Names and their order are part of a type.
fn same_names(expected: &[&str], found: &[&str], of: &str, what: &str) -> Result<(), String> {
    if let Some(extra) = found.iter().find(|name| !expected.contains(name)) {
        return Err(format!("{of} has {what} `{extra}` that contract 0.1 does not know"));
    }
    if let Some(missing) = expected.iter().find(|name| !found.contains(name)) {
        return Err(format!("{of} lacks {what} `{missing}` of contract 0.1"));
    }
    if expected == found {
        Ok(())
    } else {
        Err(format!("{of} has its {what}s in another order than contract 0.1"))
    }
}

fn kind(found: &types::Type) -> &'static str {
    use types::Type;
    match found {
        Type::Bool => "bool",
        Type::S8 => "s8",
        Type::U8 => "u8",
        Type::S16 => "s16",
        Type::U16 => "u16",
        Type::S32 => "s32",
        Type::U32 => "u32",
        Type::S64 => "s64",
        Type::U64 => "u64",
        Type::Float32 => "f32",
        Type::Float64 => "f64",
        Type::Char => "char",
        Type::String => "string",
        Type::List(_) => "list",
        Type::Map(_) => "map",
        Type::Record(_) => "record",
        Type::Tuple(_) => "tuple",
        Type::Variant(_) => "variant",
        Type::Enum(_) => "enum",
        Type::Option(_) => "option",
        Type::Result(_) => "result",
        Type::Flags(_) => "flags",
        Type::Own(_) | Type::Borrow(_) => "resource",
        Type::Future(_) => "future",
        Type::Stream(_) => "stream",
        Type::ErrorContext => "error-context",
        Type::FixedLengthList(_) => "fixed-length list",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_has_its_interfaces() {
        let contract = Contract::v0_1();
        for name in [DOMAIN, HOST_LOG] {
            assert!(!contract.resolve.interfaces[contract.interface(name)].functions.is_empty());
        }
    }

    #[test]
    fn a_file_cut_anywhere_is_no_whole_component() {
        // Two custom sections without a name.
        let whole = b"\0asm\x0d\0\x01\0\x00\x01\x00\x00\x81\x01\x00".iter().copied();
        let whole: Vec<u8> = whole.chain([0; 128]).collect();
        assert!(form(&whole).is_ok());
        let ends = [8, 11];
        for cut in (0..whole.len()).filter(|cut| !ends.contains(cut)) {
            assert!(matches!(form(&whole[..cut]), Err(LoadFault::Truncated { .. })), "cut at {cut}");
        }
    }
}
