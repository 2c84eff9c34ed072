// cargo wants a target; see Cargo.toml
