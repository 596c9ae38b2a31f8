mod wasm_calls;
mod wasm_fixtures;
mod wasm_loading;
mod wasm_shipped;
