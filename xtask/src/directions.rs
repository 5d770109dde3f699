//! Who may depend on whom, held against cargo's own metadata.
//!
//! Normal dependencies only: tests may use what they like. What "no runtime" means is checked through the whole graph,
//! so a helper crate cannot bring one in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::command::{Context, Failure, Result, output};

/// Crates that bring a runtime, a socket or TLS.
const RUNTIMES: &[&str] =
    &["tokio", "tokio-util", "tokio-rustls", "rustls", "mio", "socket2", "async-std", "smol", "async-io"];
const STORES: &str = "larder-store-";

/// What a package of the workspace may depend on.
struct Rule {
    package: &'static str,
    /// Packages of the workspace; a name that ends in `-` stands for all that begin so; `None` for any.
    may_use: Option<&'static [&'static str]>,
    /// Crates it may not reach, not even through others.
    must_not_reach: &'static [&'static str],
    /// Features of a direct dependency that it may not ask for.
    must_not_enable: &'static [(&'static str, &'static str)],
}

const RULES: &[Rule] = &[
    Rule { package: "larder-core", may_use: Some(&[]), must_not_reach: RUNTIMES, must_not_enable: &[] },
    Rule { package: "larder-proto", may_use: Some(&["larder-core"]), must_not_reach: RUNTIMES, must_not_enable: &[] },
    Rule { package: "larder-dump", may_use: Some(&["larder-core"]), must_not_reach: RUNTIMES, must_not_enable: &[] },
    Rule {
        package: "larder-footprint",
        may_use: Some(&["larder-core", "larder-structures"]),
        must_not_reach: &[],
        must_not_enable: &[("tokio", "net"), ("tokio", "full")],
    },
    Rule { package: "larder-net", may_use: Some(&["larder-core"]), must_not_reach: &[], must_not_enable: &[] },
    // A program that uses one of the two has nothing of the other.
    Rule {
        package: "larder-store-memcached",
        may_use: Some(&["larder-core", "larder-net", "larder-proto"]),
        must_not_reach: &["redis"],
        must_not_enable: &[],
    },
    Rule {
        package: "larder-store-redis",
        may_use: Some(&["larder-core", "larder-net"]),
        must_not_reach: &["larder-proto"],
        must_not_enable: &[],
    },
    Rule {
        package: STORES,
        may_use: Some(&["larder-core", "larder-dump", "larder-net", "larder-proto"]),
        must_not_reach: &[],
        must_not_enable: &[],
    },
    Rule {
        package: "larder-structures",
        may_use: Some(&["larder-core"]),
        must_not_reach: &[],
        must_not_enable: &[("tokio", "net"), ("tokio", "full")],
    },
    Rule {
        package: "larder-layers",
        may_use: Some(&["larder-core"]),
        must_not_reach: &[],
        must_not_enable: &[("tokio", "net"), ("tokio", "full")],
    },
    Rule {
        package: "larder-typed",
        may_use: Some(&["larder-core", "larder-structures"]),
        must_not_reach: &[],
        must_not_enable: &[],
    },
    Rule {
        package: "larder",
        may_use: Some(&[
            "larder-core",
            "larder-dump",
            "larder-footprint",
            "larder-structures",
            "larder-layers",
            "larder-typed",
            STORES,
        ]),
        must_not_reach: &[],
        must_not_enable: &[],
    },
    Rule {
        package: "larder-testkit",
        // Of the layers, the one that counts: the suites assert round trips with it.
        may_use: Some(&["larder-core", "larder-structures", "larder-layers"]),
        must_not_reach: &[],
        must_not_enable: &[],
    },
    Rule {
        package: "larder-server",
        may_use: Some(&["larder-core", "larder-proto", STORES]),
        must_not_reach: &[],
        must_not_enable: &[],
    },
    Rule {
        package: "larder-cli",
        may_use: Some(&["larder", "larder-server"]),
        must_not_reach: &[],
        must_not_enable: &[],
    },
    Rule { package: "larder-bench", may_use: None, must_not_reach: &["larder-cli"], must_not_enable: &[] },
    Rule {
        package: "larder-prove",
        may_use: None,
        // The command, for its command line is fuzzed.
        must_not_reach: &["larder-bench"],
        must_not_enable: &[],
    },
    Rule { package: "xtask", may_use: Some(&["larder-testkit"]), must_not_reach: &[], must_not_enable: &[] },
];

/// Returns a line for each dependency that points the wrong way.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let text = output(cargo.args(["metadata", "--format-version", "1"]).current_dir(root))?;
    let mut found = check(&Workspace::parse(&text)?, RULES)?;
    for (feature, banned) in ALONE {
        let tree = ["tree", "-p", "larder", "--no-default-features", "--features", feature, "-e", "normal"];
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let text = output(cargo.args(tree).args(["--prefix", "none", "--format", "{p}"]).current_dir(root))?;
        found.extend(strangers(feature, &text, banned));
    }
    Ok(found)
}

/// The facade with one store's feature alone, and what it must not bring.
const ALONE: &[(&str, &[&str])] =
    &[("memcached", &["redis", "larder-store-redis"]), ("redis", &["larder-proto", "larder-store-memcached"])];

/// What a tree of dependencies holds of what it must not.
fn strangers(feature: &str, tree: &str, banned: &[&str]) -> Vec<String> {
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let met = banned.iter().filter(|name| names.contains(**name));
    met.map(|name| format!("larder with the feature {feature} alone may not bring {name}")).collect()
}

/// A direct, normal dependency.
#[derive(Debug)]
struct Dependency {
    name: String,
    features: Vec<String>,
}

struct Workspace {
    /// Its packages, with what their manifests ask for.
    members: BTreeMap<String, Vec<Dependency>>,
    /// Every package, by name, with the names of what it resolved to.
    graph: BTreeMap<String, BTreeSet<String>>,
}

impl Workspace {
    fn parse(metadata: &str) -> Result<Self> {
        let metadata: Value = serde_json::from_str(metadata).context(|| "cargo metadata".to_owned())?;
        let odd = || Failure("cargo metadata has an unexpected shape".to_owned());
        let list = |value: &Value| value.as_array().cloned().ok_or_else(odd);
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(odd);

        let workspace: BTreeSet<String> =
            list(&metadata["workspace_members"])?.iter().map(text).collect::<Result<_>>()?;
        let mut names = BTreeMap::new();
        let mut members = BTreeMap::new();
        for package in list(&metadata["packages"])? {
            let (id, name) = (text(&package["id"])?, text(&package["name"])?);
            if workspace.contains(&id) {
                members.insert(name.clone(), Self::dependencies(&package)?);
            }
            names.insert(id, name);
        }
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in list(&metadata["resolve"]["nodes"])? {
            let from = names.get(&text(&node["id"])?).ok_or_else(odd)?;
            for dependency in list(&node["deps"])? {
                let kinds = list(&dependency["dep_kinds"])?;
                if kinds.iter().any(|kind| kind["kind"].is_null()) {
                    let to = names.get(&text(&dependency["pkg"])?).ok_or_else(odd)?;
                    graph.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
        Ok(Self { members, graph })
    }

    fn dependencies(package: &Value) -> Result<Vec<Dependency>> {
        let all = package["dependencies"].as_array().context_some("a package without dependencies")?;
        let normal = all.iter().filter(|dependency| dependency["kind"].is_null());
        normal
            .map(|dependency| {
                let name = dependency["name"].as_str().context_some("a dependency without a name")?;
                let features = dependency["features"].as_array().into_iter().flatten();
                let features = features.filter_map(Value::as_str).map(str::to_owned).collect();
                Ok(Dependency { name: name.to_owned(), features })
            })
            .collect()
    }

    /// The way from `from` to `to` through normal dependencies, if there is one.
    fn path(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut seen = BTreeSet::from([from.to_owned()]);
        let mut queue = std::collections::VecDeque::from([vec![from.to_owned()]]);
        while let Some(path) = queue.pop_front() {
            let last = path.last()?;
            if last == to {
                return Some(path);
            }
            for next in self.graph.get(last).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    queue.push_back([path.as_slice(), std::slice::from_ref(next)].concat());
                }
            }
        }
        None
    }
}

/// `Context` for an option.
trait ContextSome<T> {
    fn context_some(self, what: &str) -> Result<T>;
}

impl<T> ContextSome<T> for Option<T> {
    fn context_some(self, what: &str) -> Result<T> {
        self.ok_or_else(|| Failure(format!("cargo metadata: {what}")))
    }
}

fn check(workspace: &Workspace, rules: &[Rule]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (package, dependencies) in &workspace.members {
        let Some(rule) = rules.iter().find(|rule| stands_for(rule.package, package)) else {
            found.push(format!("{package} has no rule about its dependencies: add one to xtask/src/directions.rs"));
            continue;
        };
        for dependency in dependencies {
            let name = dependency.name.as_str();
            if workspace.members.contains_key(name)
                && let Some(may_use) = rule.may_use
                && !may_use.iter().any(|allowed| stands_for(allowed, name))
            {
                found.push(format!("{package} may not depend on {name}; it may on {may_use:?}"));
            }
            for (_, feature) in rule.must_not_enable.iter().filter(|(banned, _)| *banned == name) {
                if dependency.features.iter().any(|enabled| enabled == feature) {
                    found.push(format!("{package} may not enable the feature {feature} of {name}"));
                }
            }
        }
        for banned in rule.must_not_reach {
            if let Some(path) = workspace.path(package, banned) {
                found.push(format!("{package} may not reach {banned}, and does: {}", path.join(" -> ")));
            }
        }
    }
    Ok(found)
}

/// Whether a name in a rule means this package.
fn stands_for(pattern: &str, package: &str) -> bool {
    if pattern.ends_with('-') { package.starts_with(pattern) } else { package == pattern }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace of `(package, [dependency])`; `dependency+feature` asks for a feature.
    fn workspace(packages: &[(&str, &[&str])], outside: &[(&str, &[&str])]) -> Workspace {
        let split = |text: &str| {
            let mut parts = text.split('+').map(str::to_owned);
            Dependency { name: parts.next().unwrap(), features: parts.collect() }
        };
        let members = packages.iter().map(|(name, all)| ((*name).to_owned(), all.iter().map(|d| split(d)).collect()));
        let graph = packages.iter().chain(outside).map(|(name, all)| {
            let to = all.iter().map(|dependency| split(dependency).name).collect();
            ((*name).to_owned(), to)
        });
        Workspace { members: members.collect(), graph: graph.collect() }
    }

    fn found(packages: &[(&str, &[&str])]) -> String {
        check(&workspace(packages, &[("helper", &["tokio"])]), RULES).unwrap().join("\n")
    }

    #[test]
    fn the_intended_directions_pass() {
        let none: &[&str] = &[];
        let packages = [
            ("larder-core", none),
            ("larder-proto", &["larder-core"]),
            ("larder-store-memory", &["larder-core"]),
            ("larder-structures", &["larder-core", "tokio+time"]),
            ("larder", &["larder-structures", "larder-store-memory"]),
            ("larder-cli", &["larder"]),
            ("larder-bench", &["larder", "larder-testkit"]),
            ("larder-testkit", &["larder-core", "tokio+net"]),
        ];
        assert_eq!(found(&packages), "");
    }

    #[test]
    fn a_structure_that_names_a_store_is_found() {
        let packages = [("larder-structures", &["larder-store-memory"][..]), ("larder-store-memory", &[])];
        assert!(found(&packages).contains("larder-structures may not depend on larder-store-memory"));
    }

    #[test]
    fn a_store_that_names_a_structure_is_found() {
        let packages = [("larder-store-new", &["larder-structures"][..]), ("larder-structures", &[])];
        assert!(found(&packages).contains("larder-store-new may not depend on larder-structures"));
    }

    #[test]
    fn a_store_that_a_feature_brings_along_is_found() {
        let tree = "larder v0.1.0 (/x)\nlarder-store-memcached v0.1.0 (/y)\nredis v1.8.1\n";
        assert_eq!(strangers("memcached", tree, &["redis", "larder-store-redis"]).len(), 1);
        assert_eq!(strangers("memcached", tree, &["larder-store-redis"]), [""; 0]);
        assert!(found(&[("larder-store-memcached", &["redis"])]).contains("larder-store-memcached -> redis"));
    }

    #[test]
    fn a_runtime_in_core_is_found_even_through_a_helper() {
        assert!(found(&[("larder-core", &["tokio"])]).contains("larder-core -> tokio"));
        assert!(found(&[("larder-core", &["helper"])]).contains("larder-core -> helper -> tokio"));
    }

    #[test]
    fn a_socket_feature_in_structures_is_found() {
        let said = found(&[("larder-structures", &["tokio+net"])]);
        assert!(said.contains("may not enable the feature net of tokio"), "{said}");
    }

    #[test]
    fn testkit_in_something_shipped_is_found() {
        for package in ["larder", "larder-cli", "larder-layers", "larder-store-memcached"] {
            let packages = [(package, &["larder-testkit"][..]), ("larder-testkit", &[])];
            assert!(found(&packages).contains("may not depend on larder-testkit"), "{package}");
        }
    }

    #[test]
    fn nothing_depends_on_the_command() {
        for package in ["larder", "larder-testkit", "larder-bench", "xtask"] {
            let said = found(&[(package, &["larder-cli"][..]), ("larder-cli", &[])]);
            assert!(said.contains(package) && said.contains("larder-cli"), "{package}: {said}");
        }
    }

    #[test]
    fn a_package_without_a_rule_is_found() {
        assert!(found(&[("larder-novel", &[])]).contains("larder-novel has no rule"));
    }

    #[test]
    fn this_workspace_is_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = output(Command::new("cargo").args(["metadata", "--format-version", "1"]).current_dir(root)).unwrap();
        let workspace = Workspace::parse(&text).unwrap();
        assert!(workspace.members.contains_key("larder-core"));
        assert!(workspace.path("larder-core", "bytes").is_some());
        assert!(workspace.path("larder-core", "tempfile").is_none());
        let testkit = &workspace.members["larder-testkit"];
        assert!(testkit.iter().any(|it| it.name == "tokio" && it.features.iter().any(|feature| feature == "net")));
    }
}
