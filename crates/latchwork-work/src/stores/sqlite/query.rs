//! Listings of orders.
