-- Runs that failed, by configuration and status: how many, of how many, in how many sessions, and
-- the first line of the latest reason.
SELECT
    dataset, workload, strategy, layout, variant, network, status,
    count(*) AS failed,
    any_value(runs_of_configuration) AS runs,
    count(DISTINCT session) AS sessions,
    max(started) AS last_started,
    split_part(arg_max(reason, started), chr(10), 1) AS last_reason
FROM (
    SELECT
        *,
        count(*) OVER (PARTITION BY dataset, workload, strategy, layout, variant, network)
            AS runs_of_configuration
    FROM runs
)
WHERE status <> 'ok'
GROUP BY dataset, workload, strategy, layout, variant, network, status
ORDER BY failed DESC, last_started DESC
