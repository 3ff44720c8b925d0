-- Every configuration on every kind of machine: how often it was measured, when, and the median of
-- its training seconds per epoch over all sessions.
SELECT
    dataset, workload, strategy, layout, variant, network, machines,
    count(DISTINCT session) AS sessions,
    count(*) AS measurements,
    min(started) AS first_started,
    max(started) AS last_started,
    median(train_seconds_per_epoch) AS median_seconds
FROM measurements
GROUP BY ALL
ORDER BY ALL
