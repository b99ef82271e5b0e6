//! The examples do what they say.

#[path = "../../examples/idempotent_resume.rs"]
mod idempotent_resume;
#[path = "../../examples/lock_monitoring.rs"]
mod lock_monitoring;

#[tokio::test]
async fn the_idempotent_resume_of_the_seed() {
    assert_eq!(
        idempotent_resume::run().await.unwrap(),
        [
            "the lock was kept: completed, after 3 actions: published",
            "the lock ran out: completed, after 3 actions: published",
            "somebody else was faster: completed, after 1 actions: published",
        ]
    );
}

#[tokio::test]
async fn the_lock_monitoring_of_the_seed() {
    assert_eq!(
        lock_monitoring::run().await.unwrap(),
        ["2 × contention flow:entity:A-1", "1 × lost flow:entity:A-1"]
    );
}
