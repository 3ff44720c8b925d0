# Check what this machine can run. Needs no data and measures nothing.
#
# OUTPUTS:
#   lines on the terminal, and in results/{experiment}/logs/check.log


rule check:
    log:
        f"results/{EXPERIMENT.name}/logs/check.log",
    localrule: True
    conda:
        "../envs/train.yaml"
    message:
        "Check what this machine can run"
    shell:
        "python -m scripts.check 2>&1 | tee -i {log:q}"
