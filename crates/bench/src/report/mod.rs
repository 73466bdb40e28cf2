//! Reports of a lab: tables for a terminal and one self-contained page with plots.
