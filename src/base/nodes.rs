//! The *nodes* of a group: sets of ranks that share memory. A node is a host, or a part of a host
//! that is treated as one.

use super::ids::{Rank, WorldSize};

/// The partition of a group's ranks into nodes. Nodes are numbered in the order of their lowest
/// ranks, and the ranks of a node in ascending order. The ranks of one node need not be
/// consecutive.
///
/// For example, ranks with the labels `a b a b b` have the nodes {0, 2} and {1, 3, 4}. Rank 3 is on
/// node 1 and has the local rank 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMap {
    members: Vec<Vec<Rank>>,
    /// The node and the local rank (the position within the node) of each rank. A `u32` suffices
    /// for every group.
    positions: Box<[(u32, u32)]>,
}

impl NodeMap {
    /// Returns the map that puts ranks with equal labels on one node.
    pub fn by_label<L: PartialEq>(labels: &[L]) -> Self {
        let mut node_labels: Vec<&L> = Vec::new();
        let mut members: Vec<Vec<Rank>> = Vec::new();
        let mut positions = Vec::new();
        for (rank, label) in labels.iter().enumerate() {
            let existing = node_labels.iter().position(|&first| first == label);
            let node = existing.unwrap_or_else(|| {
                node_labels.push(label);
                members.push(Vec::new());
                members.len() - 1
            });
            positions.push((to_u32(node), to_u32(members[node].len())));
            members[node].push(rank);
        }
        Self { members, positions: positions.into() }
    }

    /// Returns the map that puts each rank on a node of its own.
    pub fn one_per_rank(size: WorldSize) -> Self {
        let members = (0..size).map(|rank| vec![rank]).collect();
        Self { members, positions: (0..size).map(|rank| (to_u32(rank), 0)).collect() }
    }

    /// Returns the number of ranks.
    pub fn rank_count(&self) -> WorldSize {
        self.positions.len()
    }

    /// Returns the number of nodes.
    pub fn node_count(&self) -> usize {
        self.members.len()
    }

    /// Returns the node of a rank.
    pub fn node_of(&self, rank: Rank) -> usize {
        self.positions[rank].0 as usize
    }

    /// Returns the local rank of a rank: its position within its node.
    pub fn local_rank(&self, rank: Rank) -> Rank {
        self.positions[rank].1 as usize
    }

    /// Returns the ranks of a node.
    pub fn members(&self, node: usize) -> &[Rank] {
        &self.members[node]
    }

    /// Returns the leader of each node, which is the node's lowest rank.
    pub fn leaders(&self) -> impl Iterator<Item = Rank> + '_ {
        self.members.iter().map(|members| members[0])
    }

    /// Returns the number of ranks on the smallest node.
    pub fn min_ranks_per_node(&self) -> usize {
        self.members.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// Returns the number of ranks on the largest node.
    pub fn max_ranks_per_node(&self) -> usize {
        self.members.iter().map(Vec::len).max().unwrap_or(0)
    }
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_numbers_follow_the_lowest_rank_of_each_label() {
        let nodes = NodeMap::by_label(&["b", "a", "b", "c", "a", "b"]);
        assert_eq!((nodes.rank_count(), nodes.node_count()), (6, 3));
        assert_eq!(nodes.members(0), [0, 2, 5]);
        assert_eq!(nodes.members(1), [1, 4]);
        assert_eq!((nodes.node_of(5), nodes.local_rank(5)), (0, 2));
        assert_eq!(nodes.leaders().collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!((nodes.min_ranks_per_node(), nodes.max_ranks_per_node()), (1, 3));
        assert_eq!(NodeMap::one_per_rank(3), NodeMap::by_label(&[0, 1, 2]));
    }
}
