//! Pulls from servers of these tests' own: what reaches the directory, what the servers are asked and told, and what is said
//! when something is wrong.

mod commands;
mod downloads;
mod refusals;
mod support;
