//! Prices of GPUs by the hour, from the catalog's price lists.

use serde::Deserialize;
use trainwright_spec::catalog;
use trainwright_spec::cluster::Cluster;
use trainwright_spec::sourced::Sourced;
use trainwright_spec::units::DollarsPerHour;

/// A price of one GPU, with where it is from.
#[derive(Debug, Clone, PartialEq)]
pub struct Price {
    /// For each GPU.
    pub per_gpu: DollarsPerHour,
    /// Whose price it is, in words.
    pub source: String,
}

/// One file of `prices` in the catalog.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceList {
    instances: Vec<Instance>,
}

/// A machine that can be rented.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// Its provider's name for it.
    pub name: String,
    /// The node of the catalog that it is, if the catalog has it.
    pub node: Option<String>,
    /// The GPU of the catalog that it has.
    pub gpu: String,
    /// How many.
    pub gpus: usize,
    /// Where it can be rented, where that is stated.
    pub region: Option<String>,
    /// When that was its price, where that is stated.
    pub as_of: Option<String>,
    /// Of all of it.
    pub price: Sourced<DollarsPerHour>,
}

/// Every instance of the catalog, by provider and in the order of its list.
pub fn instances() -> Vec<(&'static str, Instance)> {
    let list = |provider: &'static str| {
        let text = catalog::text("prices", provider).expect("the name is one of the catalog's");
        let list: PriceList = toml::from_str(text)
            .unwrap_or_else(|error| panic!("the catalog's prices of {provider} can be read: {error}"));
        list.instances.into_iter().map(move |instance| (provider, instance))
    };
    catalog::names("prices").into_iter().flat_map(list).collect()
}

/// The list price of a cluster's GPUs: of its node where a list has it, else the middle one of the lists' prices of
/// its GPU, the lower of two. `None` if no list has the GPU.
pub fn list_price(cluster: &Cluster) -> Option<Price> {
    let all = instances();
    if let Some((provider, offer)) =
        all.iter().find(|(_, instance)| instance.node.as_ref() == Some(&cluster.node.name))
    {
        return Some(Price { per_gpu: offer.per_gpu(), source: offer.words(provider) });
    }
    let mut alike: Vec<&(&str, Instance)> =
        all.iter().filter(|(_, instance)| instance.gpu == cluster.node.gpu.name).collect();
    alike.sort_by(|a, b| a.1.per_gpu().get().total_cmp(&b.1.per_gpu().get()));
    let (provider, middle) = alike.get(alike.len().saturating_sub(1) / 2)?;
    let source = format!(
        "no list has {}; of {} prices of its GPU the middle one, {}",
        cluster.node.name,
        alike.len(),
        middle.words(provider)
    );
    Some(Price { per_gpu: middle.per_gpu(), source })
}

impl Instance {
    /// The price of one of its GPUs.
    pub fn per_gpu(&self) -> DollarsPerHour {
        self.price.value / self.gpus as f64
    }

    fn words(&self, provider: &str) -> String {
        let date = self.as_of.as_ref().map_or(String::new(), |date| format!(", {date}"));
        format!("{provider} {}, on-demand list{date}: {}", self.name, self.price.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_its_price_and_others_the_median_price_of_their_gpu() {
        let price = |name: &str| list_price(&Cluster::from_name(name).unwrap());
        // 98.32 dollars for 8 GPUs.
        assert_eq!(price("aws-p5:4").unwrap().per_gpu, DollarsPerHour::new(98.32 / 8.0));
        // H100 SXM: 2.99, 3.29, 10.80, 12.29, 12.29.
        assert_eq!(price("dgx-h100").unwrap().per_gpu, DollarsPerHour::new(10.8));
        assert_eq!(price("mi300x-8"), None);
    }

    #[test]
    fn every_price_has_a_source_and_names_entries_of_the_catalog() {
        for (provider, instance) in instances() {
            assert!(instance.price.source.len() > 3, "{provider} {}", instance.name);
            assert!(catalog::names("gpus").contains(&instance.gpu.as_str()), "{}", instance.gpu);
            assert!(instance.node.iter().all(|node| catalog::names("nodes").contains(&node.as_str())));
        }
    }
}
